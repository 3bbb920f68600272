"""`lockstep verify`: proves that the targets have the rows of the sources, and says which side is wrong where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from cdc_core.cli.options import TargetOption
from cdc_core.cli.output import listing, table
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import to_document
from cdc_core.model.readable import counted
from cdc_core.operations.verify.modes import Mode

if TYPE_CHECKING:
    from cdc_core.operations.verify.results import Finding, TableResult, VerifyReport

app = typer.Typer()

_COLUMNS, _DETAILS = (
    "table verdict source_rows target_rows differences moving unsettled",
    "differences moving unsettled",
)
_SHOWN = 20
"""Findings of a table that are printed; --json has more."""


@pipeline_command(app)
def verify(
    call: PipelineCall,
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
) -> None:
    """Compare the rows of the sources with a target, while both are written.

    \b
      lockstep verify shop shop.orders --target shards
      lockstep verify shop --mode random --sample 5

    Reads with SELECT only. A change that the target has not applied yet is not a difference. An interrupted
    verification continues after its last range. Only --mode ordered proves that the target is equal. Exit codes: 0
    nothing differs; 4 differences; 75 some rows could not be judged yet; 3 a table cannot be compared.
    """
    name = call.pipeline.one_target(target, "lockstep verify").name
    from cdc_core.operations.extract.process_memory import without_pandas

    without_pandas()  # its import takes longer than comparing 100,000 rows
    from cdc_core.operations.verify.verifier import verify_target

    with call.opened() as ready:
        report = verify_target(
            ready,
            name,
            tables,
            mode=mode,
            begun_after_us=ready.meta.now_us() if restart else 0,
            sample_percent=sample,
            seed=seed,
        )
    _answer(call, report, ready.store.location(report.path))
    call.output.leave(report.error)


def _answer(call: PipelineCall, report: VerifyReport, path: str) -> None:
    from cdc_core.operations.verify.results import proven

    results, target, mode, output = report.results, report.target, report.mode, call.output
    document: dict[str, Any] = {
        "target": target,
        "mode": mode,
        "equal": proven(results),
        "evidence": path,
        "tables": [result.to_document(values=True) for result in results],
    }
    if mode is Mode.RANDOM:
        document |= {"seed": report.seed, "sample_percent": report.share * 100}
    if report.error is not None:
        document |= to_document(report.error)
    shown: list[RenderableType] = [
        listing(
            f"verified: {target}" if mode is Mode.ORDERED else f"{target}: {_TITLES[mode]}",
            document["tables"],
            _COLUMNS,
            omit_empty=_DETAILS,
        )
    ]
    for result in results:
        if result.findings:
            shown.append(findings_table(result))
    call.answer(document, *shown)
    for result in results:
        if result.error is not None and result.error is not report.error:
            output.note(f"{result.table} was not compared: {result.error}")
        for name, why in result.left_out.items():
            output.note(f"{result.table}.{name} was not compared: {why}")
        if result.whole and result.error is None and mode is Mode.ORDERED:
            output.note(
                f"{result.table} was read in one range, and an interruption would begin it again: {result.whole}"
            )
        if result.greatest_differs:
            output.note(f"{result.table}: the target's greatest key differs from the source's")
        if result.differences > _SHOWN and result.findings:
            output.note(
                f"{result.table}: {result.differences} differences; --json has the first {len(result.findings)}"
            )
    if mode is Mode.RANDOM:
        seen, skipped = sum(result.source_rows for result in results), sum(result.skipped_rows for result in results)
        share = 100 * seen / (seen + skipped) if seen + skipped else 100
        output.note(
            f"a sample: {seen:,} of about {seen + skipped:,} rows were compared ({share:.1f} %); --seed {report.seed}"
        )
    elif mode is not Mode.ORDERED:
        output.note("no rows were compared, and equal counts can hide rows that differ; --mode ordered compares rows")
    output.note(f"evidence: {path}")


_TITLES = {
    Mode.RANDOM: "a sample of the rows", Mode.COUNT: "numbers of rows", Mode.MAX_ID: "numbers of rows, greatest keys",
}  # fmt: skip


def findings_table(result: TableResult) -> RenderableType:
    rows = [
        (
            ", ".join(f"{name}={_shown(value)}" for name, value in finding.key.items()),
            finding.kind,
            finding.wrong,
            _values(finding),
            ", ".join(finding.shards),
        )
        for finding in result.findings[:_SHOWN]
    ]
    return table(f"differences: {result.table}", ("key", "how", "wrong", "source → target", "at"), rows)


def _values(finding: Finding) -> str:
    if not finding.columns:
        return f"{counted(finding.source_rows, 'row')} → {counted(finding.target_rows, 'row')}"
    return ", ".join(
        f"{name}: " + ("(masked)" if mine is None and theirs is None else f"{_shown(mine)} → {_shown(theirs)}")
        for name, (mine, theirs) in finding.columns.items()
    )


def _shown(value: str | None) -> str:
    return "NULL" if value is None else repr(value) if len(value) <= 60 else repr(value[:60]) + "…"
