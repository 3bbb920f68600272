"""`lockstep run`: the whole line without Airflow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cdc_core.cli.extract import describe, extract_sources
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
    moment_us,
)
from cdc_core.cli.output import Output, table
from cdc_core.cli.stage import opened
from cdc_core.cli.status import LEDGER_COLUMNS, ledger_document, ledger_row
from cdc_core.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    pipeline: PipelineArgument,
    until: Annotated[
        str, typer.Option("--until", metavar="now|TIME", help="Read up to now, or to an ISO 8601 time with a zone.")
    ] = "now",
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="Only this target; may be repeated.")
    ] = None,
    staged: Annotated[
        bool, typer.Option("--staged", help="Apply what is staged already; do not ask the sources.")
    ] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Do the whole line once, without Airflow: extract, plan, merge, filter, write, quality, commit.

    \b
      lockstep run shop
      lockstep run shop --target shards
      lockstep run shop --staged

    The code of each task is the one that Airflow runs; Spark runs on the pipeline's spark.master. Takes all that
    is staged and not applied yet, also what a failed run has left. Ends with the ledger, which must add up.
    """
    from cdc_core.meta import Meta
    from cdc_core.run import Rooms, apply

    output = Output(as_json)
    path, parsed = load_pipeline(pipeline, pipelines)
    targets = choose([one.name for one in parsed.targets], target, "target")
    until_us = moment_us(until)
    if not targets:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(path),
            code="cli.no_targets",
            remedy="add one to `targets`, or use `lockstep extract`, which stages only",
        )
    extracted = [] if staged else extract_sources(parsed, [one.name for one in parsed.sources], until_us, output)
    run_id = f"{parsed.pipeline}-cli-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
    logs = Path(tempfile.mkdtemp(prefix="lockstep-run-"))
    with Meta.open(parsed.meta.url) as meta, _spinner(output) as began:
        rooms = Rooms(parsed, path.absolute(), meta, opened(parsed), logs, os.environ, began)
        done = apply(rooms, run_id, targets=targets)
    document = {
        "pipeline": parsed.pipeline,
        "run_id": done.run_id,
        "extracted": [describe(name, result) for name, result in extracted],
        "batches": done.batches,
        "rows": done.rows,
        "targets": [summary.to_json() for summary in done.summaries],
        "ledgers": [ledger_document(row.entry) for row in done.ledgers],
        "logs": str(logs),
    }
    if not done.summaries:
        output.answer(document, "Nothing to apply: every target has taken all that is staged.")
        return
    rows = [ledger_row(row.entry) for row in done.ledgers]
    output.answer(
        document,
        table(f"ledger of {done.run_id}", LEDGER_COLUMNS, rows, numbers=LEDGER_COLUMNS[2:-1]),
        f"{done.batches} batches, {done.rows:,} changes; output of Spark: {logs}",
    )


@contextmanager
def _spinner(output: Output) -> Iterator[Callable[[str], None]]:
    if not output.animated:
        yield lambda step: None
        return
    with output.err.status("plan") as status:
        yield lambda step: status.update(step)
