"""`lockstep verify`: proves that the targets have the rows of the sources, and says which side is wrong where not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from cdc_core.cli.extract import extract_sources
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, duration, error_document, table
from cdc_core.cli.performable import performable
from cdc_core.errors import AnotherProcess, UsageError
from cdc_core.stage.stores import open_stage
from cdc_core.verify.modes import Mode, outcome
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.verify.job import Job
    from cdc_core.verify.results import Finding, TableResult, Verified

_SHOWN = 20
"""Findings of a table that are printed; --json has more."""


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    pipeline: PipelineArgument,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Logical tables; default: all of the target.")
    ] = None,
    target: TargetOption = None,
    mode: Annotated[
        Mode,
        typer.Option(help="ordered: every row; random: a sample; count: number of rows; max-id: and greatest key."),
    ] = Mode.ORDERED,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample", metavar="PERCENT", min=0.001, max=100, help="Of --mode random; default: verify.sample_percent."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Of --mode random: repeats an earlier sample, if no row came or left since."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin from the start, also if a verification was interrupted.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Verify nothing; show the newest evidence and its age.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Compare the rows of the sources with a target, while both are written.

    \b
      lockstep verify shop
      lockstep verify shop shop.orders --target shards
      lockstep verify shop --mode random --sample 5
      lockstep verify shop --show

    Reads the sources in short chunks with SELECT only, stops nothing and locks nothing; it waits while a copy would
    have to (snapshot.throttle). A change that the target has not applied yet is not a difference. For a row that
    differs, the staged changes say whether the target is wrong, or the stage. A verification that was interrupted
    continues after the last range. Evidence is kept on the stage. Only --mode ordered proves that the target is equal.
    Exit code 0: nothing differs; 4: differences; 75: some rows could not be judged yet; 3: a table cannot be compared.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    name = one_target(parsed, target)
    if show:
        _show(output, parsed, name)
        return
    from cdc_core.extract.process_memory import without_pandas

    without_pandas()  # its import takes longer than comparing 100,000 rows
    from cdc_core.meta import Meta
    from cdc_core.verify import evidence
    from cdc_core.verify.job import Job
    from cdc_core.verify.lease import verifier_lease
    from cdc_core.verify.verifier import verify as run

    store = open_stage(parsed.stage)
    with (
        Meta.open(parsed.meta.url, parsed.pipeline) as meta,
        verifier_lease(meta, parsed.pipeline, name) as lease,
        _watch(output) as watch,
    ):
        job = Job(
            parsed, parsed.target(name), meta, store, lambda source: extract_on(parsed, source, output), os.environ,
            watch, lease=lease, mode=mode, restart=restart, sample_percent=sample, seed=seed, said=output.note,
        )  # fmt: skip
        found = run(job, tables)
        path = evidence.keep(job, found)
    _answer(output, parsed, name, job, found, store.location(path))
    error = outcome(found.results, name)
    if error is not None:
        raise typer.Exit(error.exit_code)


def extract_on(pipeline: Pipeline, source: str, output: CliOutput) -> None:
    """Extracts up to now, unless another extractor is at it."""
    with suppress(AnotherProcess):
        extract_sources(pipeline, [source], None, output)


def one_target(pipeline: Pipeline, wanted: str | None, command: str = "verify") -> str:
    names = choose([one.name for one in pipeline.targets], [wanted] if wanted else None, "target")
    if len(names) != 1:
        raise UsageError(
            f"The pipeline has {counted(len(names), 'target')}.",
            where=f"lockstep {command}",
            code="usage.argument",
            remedy=f"add --target, one of: {', '.join(names)}" if names else "add a target to the pipeline file",
        )
    return names[0]


def _answer(output: CliOutput, pipeline: Pipeline, target: str, job: Job, found: Verified, path: str) -> None:
    from cdc_core.verify.evidence import proven

    results = found.results
    document: dict[str, Any] = {
        "pipeline": pipeline.pipeline,
        "target": target,
        "mode": job.mode,
        "equal": proven(results),
        "evidence": path,
        "tables": [result_document(one) for one in results],
    }
    if job.mode is Mode.RANDOM:
        document |= {"seed": found.seed, "sample_percent": job.share * 100}
    error = outcome(results, target)
    if error is not None:
        document |= error_document(error)
    rows = [
        (one.table, verdict(one), one.source.rows, one.target.rows, one.differences, one.moving, one.unsettled)
        for one in results
    ]
    shown: list[RenderableType] = [
        table(
            f"verified: {target}" if job.mode is Mode.ORDERED else f"{target}: {_TITLES[job.mode]}",
            ("table", "verdict", "source rows", "target rows", "different", "moving", "unsettled"),
            rows,
            numbers=("source rows", "target rows", "different", "moving", "unsettled"),
            omit_empty=("different", "moving", "unsettled"),
        )
    ]
    for one in results:
        if one.findings:
            shown.append(findings_table(one))
    output.answer(document, *shown)
    for one in results:
        if one.error is not None:
            output.note(f"{one.table} was not compared: {one.error}")
        for name, why in one.left_out.items():
            output.note(f"{one.table}.{name} was not compared: {why}")
        if one.whole and one.error is None and job.mode is Mode.ORDERED:
            output.note(f"{one.table} was read in one range, which cannot be continued: {one.whole}")
        if one.greatest_differs:
            output.note(f"{one.table}: the greatest key of the target is another than the source's")
        if one.differences > _SHOWN and one.findings:
            output.note(f"{one.table}: {one.differences} differences; --json has the first {len(one.findings)}")
    if job.mode is Mode.RANDOM:
        seen, skipped = sum(one.source.rows for one in results), sum(one.skipped_rows for one in results)
        share = 100 * seen / (seen + skipped) if seen + skipped else 100
        output.note(
            f"a sample: {seen:,} of about {seen + skipped:,} rows were compared ({share:.1f} %); --seed {found.seed}"
        )
    elif job.mode is not Mode.ORDERED:
        output.note(
            "no row was compared: rows may differ though their number is the same; --mode ordered compares them"
        )
    output.note(f"evidence: {path}")
    if error is not None and all(one.error is not error for one in results):
        output.note(f"{error.what}\n  fix  {performable(error.remedy)}")


_TITLES = {
    Mode.RANDOM: "a sample of the rows", Mode.COUNT: "numbers of rows", Mode.MAX_ID: "numbers of rows, greatest keys",
}  # fmt: skip


def verdict(one: TableResult) -> str:
    if one.error is not None:
        return "not compared"
    if one.differences:
        return "different"
    if one.unsettled:
        return "unsettled"
    if one.mode is Mode.RANDOM:
        return "no difference in the sample"
    if one.mode is not Mode.ORDERED:
        return "as many as changes allow" if one.moving else "as many"
    return "equal so far" if one.moving else "equal"


def findings_table(one: TableResult) -> RenderableType:
    rows = [
        (", ".join(f"{name}={_shown(value)}" for name, value in finding.key.items()), finding.kind, finding.wrong,
         _values(finding), ", ".join(finding.shards))
        for finding in one.findings[:_SHOWN]
    ]  # fmt: skip
    return table(f"differences: {one.table}", ("key", "how", "wrong", "source → target", "at"), rows)


def _values(finding: Finding) -> str:
    if not finding.columns:
        return f"{counted(finding.source_rows, 'row')} → {counted(finding.target_rows, 'row')}"
    return ", ".join(
        f"{name}: " + ("(masked)" if mine is None and theirs is None else f"{_shown(mine)} → {_shown(theirs)}")
        for name, (mine, theirs) in finding.columns.items()
    )


def _shown(value: str | None) -> str:
    return "NULL" if value is None else repr(value) if len(value) <= 60 else repr(value[:60]) + "…"


def result_document(one: TableResult) -> dict[str, Any]:
    return {
        "table": one.table,
        "verdict": verdict(one),
        "error": None if one.error is None else {"code": one.error.code, "what": one.error.what},
        "source_rows": one.source.rows,
        "target_rows": one.target.rows,
        "differences": dict(one.found),
        "moving": one.moving,
        "unsettled": one.unsettled,
        "read": [{"source": span.source, "low": str(span.low), "high": str(span.high)} for span in one.spans],
        "consumed_until": dict(one.consumed_until),
        "left_out": dict(one.left_out),
        "ranges": one.ranges,
        "skipped_rows": one.skipped_rows,
        "greatest_differs": one.greatest_differs,
        "seconds": round(one.seconds, 3),
        "findings": [
            {
                "id": finding.id,
                "kind": str(finding.kind),
                "wrong": str(finding.wrong),
                "key": dict(finding.key),
                "columns": {
                    name: {"source": mine, "target": theirs} for name, (mine, theirs) in finding.columns.items()
                },
                "source_rows": finding.source_rows,
                "target_rows": finding.target_rows,
                "at": list(finding.shards),
            }
            for finding in one.findings
        ],
    }


def _show(output: CliOutput, pipeline: Pipeline, target: str) -> None:
    from cdc_core.verify import evidence
    from cdc_core.windows import parse_moment, to_us

    store = open_stage(pipeline.stage)
    path, document = evidence.newest(store, target, counts=True)
    age_s = time.time() - to_us(parse_moment(document["ended"])) / 1_000_000
    rows = [
        (one["table"], _shown_verdict(one), one["source"]["rows"], one["target"]["rows"],
         sum(one["differences"].values()), one["unsettled"])
        for one in document["tables"]
    ]  # fmt: skip
    output.answer(
        {**document, "path": store.location(path), "age_s": round(age_s, 3)},
        table(
            f"evidence of {document['ended']}, {duration(age_s)} old, mode {document['mode']}",
            ("table", "verdict", "source rows", "target rows", "different", "unsettled"),
            rows,
            numbers=("source rows", "target rows", "different", "unsettled"),
            omit_empty=("different", "unsettled"),
        ),
    )
    for one in document["tables"]:
        if one["error"] is not None:
            output.note(f"{one['table']} was not compared: {one['error']['what']}")


def _shown_verdict(one: Mapping[str, Any]) -> str:
    """What the evidence says of a table, in the words of `verdict`."""
    if one["error"] is not None:
        return "not compared"
    if one["differences"]:
        return "different"
    if one["unsettled"]:
        return "unsettled"
    if one["equal"] is None:
        return "nothing found, not all rows compared"
    return "equal so far" if one["moving"] else "equal"


@contextmanager
def _watch(output: CliOutput) -> Iterator[Callable[[str, str, int], None]]:
    """A line with what is being read."""
    if not output.animated:
        yield lambda table, side, rows: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=output.err, transient=True) as progress:
        bar = progress.add_task("", total=None)
        yield lambda table, side, rows: progress.update(bar, description=f"{table}, {side}: {counted(rows, 'row')}")
