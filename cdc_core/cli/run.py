"""`lockstep run`: the whole pipeline without Airflow."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.extract import describe, extract_sources, warn_of_partial
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetsOption,
    age_us,
    choose,
    load_pipeline,
    moment_us,
    time_us,
)
from cdc_core.cli.output import CliOutput
from cdc_core.cli.repeat import repeat
from cdc_core.cli.snapshot import copy_pending
from cdc_core.cli.status import engine, ledger_document, ledger_table
from cdc_core.errors import RetryLater, UsageError
from cdc_core.extras import require
from cdc_core.stage.stores import open_stage
from cdc_core.windows import MICROSECONDS
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.apply.replay import Selection
    from cdc_core.config import Pipeline
    from cdc_core.extract import DrainResult
    from cdc_core.run import RunContext, RunResult
    from cdc_core.stage.objects import ObjectStore
    from cdc_core.target.make import MadeTable
    from spark_jobs.driver import Driver


log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    app.command()(run)


UntilOption = Annotated[
    str, typer.Option("--until", metavar="now|TIME", help="Read up to now, or up to an ISO 8601 time with a zone.")
]
StagedOption = Annotated[bool, typer.Option("--staged", help="Apply what is already staged; do not read the sources.")]
ReplayOption = Annotated[
    bool, typer.Option("--replay", help="Apply staged batches to one --target, again or for the first time.")
]
FromOption = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="TIME|BATCH", help="Replay from the window that contains a time, or from a batch."),
]
ToOption = Annotated[
    list[str] | None,
    typer.Option("--to", metavar="TIME|BATCH", help="Replay windows up to a time, or batches up to and including one."),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="Replay only this logical table; may be repeated."),
]
RequeueOption = Annotated[
    str | None, typer.Option("--requeue", metavar="RUN", help="Replay the batches of a run that has quarantined rows.")
]


EveryOption = Annotated[
    str | None,
    typer.Option("--every", metavar="AGE", help="Repeat, this long after the last beginning (10s, 5m), until stopped."),
]


def run(
    pipeline: PipelineArgument,
    until: UntilOption = "now",
    every: EveryOption = None,
    target: TargetsOption = None,
    staged: StagedOption = False,
    replay: ReplayOption = False,
    begin: FromOption = None,
    end: ToOption = None,
    table_names: TableOption = None,
    requeue: RequeueOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Run the whole pipeline once, without Airflow: extract, plan, merge, filter, write, quality, commit.

    \b
      lockstep run shop
      lockstep run shop --target shards
      lockstep run shop --every 10s
      lockstep run shop --staged
      lockstep run shop --replay --target rebuilt
      lockstep run shop --replay --target shards --from 2026-11-21T04:00:00Z --to 2026-11-21T06:00:00Z --table orders
      lockstep run shop --requeue shop-cli-20261121T040000-5f0c9a1e

    Runs the same code as the Airflow tasks, on the pipeline's spark.master if the run is large. Applies everything
    that is staged and not applied yet, including batches that another run has not committed; that run then
    ends without them. Prints the ledger, which must add up.

    A replay applies the batches that you select, whether or not the target has applied them before. It always takes
    whole batches. It does not read the sources and moves no consume record; the versions in the target keep older
    changes from overwriting newer rows. If the target already has everything, nothing changes: every row of the ledger
    is equal, stale or absent. --requeue replays a run in which a target rejected some rows (on_row_error: quarantine);
    fix the target first.

    With --every, one command keeps the targets up to date: it repeats the whole run, and keeps what it has started, so
    that a small run takes a second or two. After an error that may pass, it tries again when the next run is due; any
    other error ends the command. An interrupt (Ctrl-C, SIGTERM) ends the command and the current run, which the next
    run continues. Runs that apply nothing print nothing. Other runs of the pipeline, by hand or in Airflow, may come
    between: they take turns.
    """
    output = CliOutput(as_json)
    path, parsed = load_pipeline(pipeline, pipelines)
    require("spark", "quality", by="lockstep run")
    again = replay or requeue is not None
    taking = parsed.targets if again else parsed.scheduled_targets
    targets = choose([one.name for one in taking], target, "target")
    until_us = moment_us(until)
    selection = _selection(parsed, targets, begin, end, table_names, replay=replay)
    if every is not None and (until != "now" or again or staged):
        raise _usage("--every repeats whole runs up to now.", "leave out the other options, except --target")
    if requeue is not None and (replay or staged or begin or end or table_names):
        raise _usage("--requeue goes alone, or with --target.", "leave out the other options")
    if not targets:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(path),
            code="usage.argument",
            remedy="add one to `targets`, or use `lockstep extract`, which stages only",
        )
    if every is not None:
        _repeat(parsed, targets, age_us(every, "--every", "10s") / MICROSECONDS, output)
        return
    queried: dict[str, Any] = {}
    extracted: list[tuple[str, DrainResult]] = []
    # The extract shows its own progress.
    with run_context(parsed, CliOutput(as_json=True), ahead=True) as context:
        if not staged and not again:
            extracted = extract_sources(parsed, [one.name for one in parsed.sources], until_us, output)
            extracted = _after_extract(parsed, extracted, targets, output)
        warn_of_partial(output, parsed.pipeline, extracted)
        with _spinner(output) as began:
            now = replace(context, began=began)
            if again:
                done = _replay(now, selection, requeue, targets[0] if target else None)
            else:
                queried = _look_up(now, targets, output) if extracted else {}
                done = _apply(now, targets)
    nothing = "no batch is staged there" if again else "every target has taken all that is staged"
    _answer(output, parsed.pipeline, done, extracted, nothing, queried)


def _after_extract(
    pipeline: Pipeline, extracted: list[tuple[str, DrainResult]], targets: list[str], output: CliOutput
) -> list[tuple[str, DrainResult]]:
    """Copies what is pending, and makes the tables that the targets lack; how far each source is extracted then."""
    copied = copy_pending(pipeline, output)
    _create_missing(pipeline, targets, output)
    return [(name, copied.get(name, result)) for name, result in extracted]


def _create_missing(pipeline: Pipeline, targets: list[str], output: CliOutput) -> None:
    """Also tables of which no row is staged; those of the run's plan are made by the run itself, which also finds a
    target that does not answer: that does not keep it from the others."""
    from cdc_core.meta import Meta
    from cdc_core.target_tables import create_missing

    creating = [one for one in map(pipeline.target, targets) if one.on_missing_table == "create"]
    if not creating:
        return
    made: list[MadeTable] = []
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        for target in creating:
            try:
                made += create_missing(meta, pipeline, [target], os.environ)
            except RetryLater as error:
                output.note(f"{target.name}: no table is made: {error.what}")
    for one in made:
        if one.error is not None:
            output.note(f"{one.name} is not made: {one.error.what} {one.error.remedy}.")
        else:
            output.note(f"created {one.name}" + (f": {'; '.join(one.notes)}" if one.notes else ""))


def _repeat(pipeline: Pipeline, targets: list[str], every_s: float, output: CliOutput) -> None:
    """Whole runs, one after the other, with one Spark for all of them."""
    from cdc_core.run import apply

    names = [one.name for one in pipeline.sources]
    with run_context(pipeline, CliOutput(as_json=True), ahead=True) as kept:
        numbers = itertools.count(1)
        warned: set[str] = set()

        def turn() -> None:
            begun = time.monotonic()
            extracted = extract_sources(pipeline, names, None, output)
            extracted = _after_extract(pipeline, extracted, targets, output)
            partial = {table for _, result in extracted for table in result.partial}
            if not partial <= warned:
                warn_of_partial(output, pipeline.pipeline, extracted)
                warned.update(partial)
            with _spinner(output) as began:
                now = replace(kept, began=began)
                queried = _look_up(now, targets, output)
                done = apply(now, run_id(now, f"every-{next(numbers)}"), targets=targets)
            if done.summaries or done.lost:
                took_s = time.monotonic() - begun
                applied = f"{counted(done.batches, 'batch')}, {counted(done.rows, 'change')}, {took_s:.1f} s"
                output.line(_document(pipeline.pipeline, done, extracted, queried), f"{done.run_id}: {applied}")

        repeat(turn, every_s, output)


@contextmanager
def run_context(pipeline: Pipeline, output: CliOutput, *, ahead: bool = False) -> Iterator[RunContext]:
    """For runs in this process. ahead: what jobs import is imported beside what comes before the first one."""
    from cdc_core.meta import Meta
    from cdc_core.run import RunContext

    store = open_stage(pipeline.stage)
    with (
        Meta.open(pipeline.meta.url, pipeline.pipeline) as meta,
        driver(pipeline, store, pipeline.spark.master) as spark,
        _spinner(output) as began,
    ):
        if ahead:
            threading.Thread(target=spark.load, daemon=True).start()
        yield RunContext(pipeline, meta, store, os.environ, began, spark)


@contextmanager
def driver(pipeline: Pipeline, store: ObjectStore, master: str) -> Iterator[Driver]:
    """What Spark prints goes to a file that is kept if the block fails. Raises UsageError (install.missing)."""
    from cdc_core.apply.jobs import is_remote
    from spark_jobs.driver import Driver

    if is_remote(master):
        require("connect", by="a Spark Connect endpoint")
    with (
        _output(pipeline.pipeline) as spark_output,
        Driver(pipeline, store, master=master, output=spark_output) as made,
    ):
        yield made


def _apply(context: RunContext, targets: list[str]) -> RunResult:
    from cdc_core.run import apply

    return apply(context, run_id(context, "cli"), targets=targets)


def _look_up(context: RunContext, targets: list[str], output: CliOutput) -> dict[str, Any]:
    """Looks old changes up in the sources, if the pipeline says so; for the answer."""
    if context.pipeline.reverse_query is None:
        return {}
    from cdc_core.cli.verify import extract_on
    from cdc_core.repair.reverse_query import look_up

    context.began("reverse query")
    found = look_up(
        context.pipeline, context.meta, context.store, targets,
        lambda source: extract_on(context.pipeline, source, output), context.environ,
    )  # fmt: skip
    for line in found.notes:
        output.note(line)
    return {"reverse_query": found.to_json()}


def _replay(context: RunContext, selection: Selection | None, requeue: str | None, target: str | None) -> RunResult:
    """selection: None for a requeue. target: of a requeue, if one was named."""
    from cdc_core.apply.replay import requeued
    from cdc_core.run import replay

    if selection is None:
        assert requeue is not None
        selection = requeued(context.meta, context.store, requeue, target)
    return replay(context, run_id(context, "replay"), selection)


def run_id(context: RunContext, kind: str) -> str:
    from cdc_core.run import fresh_run_id

    return fresh_run_id(context.pipeline.pipeline, kind)


def _answer(
    output: CliOutput,
    pipeline: str,
    done: RunResult,
    extracted: list[tuple[str, DrainResult]],
    nothing: str,
    queried: dict[str, Any],
) -> None:
    """nothing: why nothing was applied, if so. queried: what the reverse query has done."""
    document = _document(pipeline, done, extracted, queried)
    if not done.summaries:
        output.answer(document, *(done.lost or [f"Nothing to apply: {nothing}."]))
        return
    entries = [row.entry for row in done.ledgers]
    ledger = ledger_table(f"ledger of {done.run_id}", entries, pipeline=pipeline) if entries else []
    output.answer(
        document,
        *ledger,
        f"{counted(done.batches, 'batch')}, {counted(done.rows, 'change')}, by "
        + ("the driver alone" if done.by_driver else "Spark"),
        *done.lost,
    )


def _document(
    pipeline: str,
    done: RunResult,
    extracted: list[tuple[str, DrainResult]],
    queried: dict[str, Any],
) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "run_id": done.run_id,
        "extracted": [describe(name, result) for name, result in extracted],
        "batches": done.batches,
        "rows": done.rows,
        "by": engine(by_driver=done.by_driver),
        "targets": [summary.to_json() for summary in done.summaries],
        "ledgers": [ledger_document(row.entry) for row in done.ledgers],
        "lost": list(done.lost),
        **queried,
    }


def _selection(
    pipeline: Pipeline,
    targets: list[str],
    begin: list[str] | None,
    end: list[str] | None,
    tables: list[str] | None,
    *,
    replay: bool,
) -> Selection | None:
    """The selection of --replay and its options; None without it. Raises UsageError (usage.argument)."""
    from cdc_core.apply.replay import Selection, places

    if not replay:
        if begin or end or tables:
            raise _usage("--from, --to and --table belong to a replay.", "add --replay, or leave them out")
        return None
    if len(targets) != 1:
        raise _usage("A replay has exactly one target.", f"give one --target of: {', '.join(targets) or '(none)'}")
    bounds = [_bound(texts or [], option) for texts, option in ((begin, "--from"), (end, "--to"))]
    (start_us, first), (end_us, last) = bounds
    return Selection(
        targets[0], start_us, end_us, places(pipeline, first, "--from"), places(pipeline, last, "--to"),
        tuple(dict.fromkeys(tables or ())),
    )  # fmt: skip


def _bound(texts: list[str], option: str) -> tuple[int | None, list[str]]:
    """At most one time, and batches."""
    times = [text for text in texts if "/" not in text]
    if len(times) > 1:
        raise _usage(f"{option} names two times.", "give one time, or one batch for each source")
    return (time_us(times[0], option) if times else None), [text for text in texts if "/" in text]


def _usage(what: str, remedy: str) -> UsageError:
    return UsageError(what, where="lockstep run", code="usage.argument", remedy=remedy)


@contextmanager
def _output(name: str) -> Iterator[Path]:
    """A file for what Spark prints, which is removed unless the block fails after Spark has begun to print."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-run-"))
    try:
        yield folder / f"lockstep-{name}.log"
    except BaseException:
        with suppress(OSError):  # not empty: errors name it
            folder.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _spinner(output: CliOutput) -> Iterator[Callable[[str], None]]:
    if not output.animated:
        yield lambda step: None
        return
    with output.err.status("plan") as status:
        yield lambda step: status.update(step)
