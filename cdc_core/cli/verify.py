"""`lockstep verify`: proves that the targets have the rows of the sources, and says which side is wrong where not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetOption,
    load_pipeline,
    opened,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.cli.performable import performable
from cdc_core.errors import to_document
from cdc_core.model.readable import counted, duration
from cdc_core.operations.verify.modes import Mode
from cdc_core.stage.stores import open_stage

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.operations.verify.results import Finding, TableResult
    from cdc_core.operations.verify.verifier import VerifyReport

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
            "--sample",
            metavar="PERCENT",
            min=0.001,
            max=100,
            help="Share for --mode random; default: verify.sample_percent.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", help="Repeat an earlier sample of --mode random, if no rows were added or deleted since."
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin from the start.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show the newest evidence.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Compare the rows of the sources with a target, while both are written.

    \b
      lockstep verify shop shop.orders --target shards
      lockstep verify shop --mode random --sample 5

    Reads with SELECT only. A change that the target has not applied yet is not a difference. An interrupted
    verification continues after its last range. Only --mode ordered proves that the target is equal. Exit codes: 0
    nothing differs; 4 differences; 75 some rows could not be judged yet; 3 a table cannot be compared.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    name = parsed.one_target(target, "lockstep verify").name
    if show:
        _show(output, parsed, name)
        return
    from cdc_core.operations.extract.process_memory import without_pandas

    without_pandas()  # its import takes longer than comparing 100,000 rows
    from cdc_core.operations.verify.verifier import FROM_THE_START, verify_target

    with opened(parsed, output) as ready:
        report = verify_target(
            ready, name, tables, mode=mode, begun_after_us=FROM_THE_START if restart else None, sample_percent=sample,
            seed=seed,
        )  # fmt: skip
    _answer(output, parsed.pipeline, report, ready.store.location(report.path))
    if report.error is not None:
        raise typer.Exit(report.error.exit_code)


def _answer(output: CliOutput, pipeline: str, report: VerifyReport, path: str) -> None:
    from cdc_core.operations.verify.evidence import proven

    results, target, mode = report.results, report.target, report.mode
    document: dict[str, Any] = {
        "pipeline": pipeline,
        "target": target,
        "mode": mode,
        "equal": proven(results),
        "evidence": path,
        "tables": [result_document(one) for one in results],
    }
    if mode is Mode.RANDOM:
        document |= {"seed": report.verified.seed, "sample_percent": report.share * 100}
    error = report.error
    if error is not None:
        document |= to_document(error)
    rows = [
        (one.table, verdict(one), one.source.rows, one.target.rows, one.differences, one.moving, one.unsettled)
        for one in results
    ]
    shown: list[RenderableType] = [
        table(
            f"verified: {target}" if mode is Mode.ORDERED else f"{target}: {_TITLES[mode]}",
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
        if one.whole and one.error is None and mode is Mode.ORDERED:
            output.note(f"{one.table} was read in one range, which cannot be continued: {one.whole}")
        if one.greatest_differs:
            output.note(f"{one.table}: the greatest key of the target is another than the source's")
        if one.differences > _SHOWN and one.findings:
            output.note(f"{one.table}: {one.differences} differences; --json has the first {len(one.findings)}")
    if mode is Mode.RANDOM:
        seen, skipped = sum(one.source.rows for one in results), sum(one.skipped_rows for one in results)
        share = 100 * seen / (seen + skipped) if seen + skipped else 100
        output.note(
            f"a sample: {seen:,} of about {seen + skipped:,} rows were compared ({share:.1f} %); "
            f"--seed {report.verified.seed}"
        )
    elif mode is not Mode.ORDERED:
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
    from cdc_core.model.windows import parse_moment, to_us
    from cdc_core.operations.verify import evidence

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
