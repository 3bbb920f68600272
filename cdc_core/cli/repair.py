"""`lockstep repair`: the rows that a verification found to differ, brought from the source by an ordinary run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from cdc_core.cli.options import TargetOption
from cdc_core.cli.output import table
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.cli.run import driver
from cdc_core.cli.verify import findings_table
from cdc_core.errors import to_document
from cdc_core.model.readable import counted
from cdc_core.process.extras import require

if TYPE_CHECKING:
    from cdc_core.operations.repair.repairer import RepairReport


app = typer.Typer()


@pipeline_command(app)
def repair(
    call: PipelineCall,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Logical tables; default: all of the evidence.")
    ] = None,
    finding: Annotated[
        list[str] | None, typer.Option("--finding", metavar="ID", help="Only this finding; may be repeated.")
    ] = None,
    target: TargetOption = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            "--evidence", metavar="PATH", help="A file of evidence/ on the stage; default: the newest of each table."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how the rows differ now.")] = False,
    stage_only: Annotated[bool, typer.Option("--stage-only", help="Leave applying the rows to the next run.")] = False,
    authoritative: Annotated[
        bool,
        typer.Option("--authoritative", help="Also replace rows that somebody else wrote with a newer version."),
    ] = False,
) -> None:
    """Fix the rows that a verification found to differ, at the target and on the stage.

    \b
      lockstep repair shop --dry-run
      lockstep repair shop shop.orders --finding 0f3a9c21b7d4

    Looks the findings up in the source by key, stages the rows, applies them by an ordinary run, and verifies them
    again. Newer changes win. Exit codes: 0 the rows are equal; 4 some still differ; 75 some could not be judged yet; 3
    a table cannot be repaired.
    """
    name = call.pipeline.one_target(target, "lockstep repair").name
    applies = not (dry_run or stage_only)
    if applies:
        require("spark", "quality", by="lockstep repair")
    from cdc_core.operations.repair.repairer import repair_target

    with call.opened() as ready, driver(call.pipeline, ready.store) if applies else nullcontext() as spark:
        report = repair_target(
            ready, name, spark, tables or (), finding or (), path=evidence, authoritative=authoritative, dry_run=dry_run
        )
    for logical in report.unjudged:
        call.output.note(f"that verification did not judge {logical} completely: verify it again")
    _answer(call, report, dry_run=dry_run)
    call.output.leave(report.done.error)


def _answer(call: PipelineCall, report: RepairReport, *, dry_run: bool) -> None:
    from cdc_core.operations.status_report import ledger_document

    done, output = report.done, call.output
    document: dict[str, Any] = {
        "target": report.target,
        "evidence": report.evidence,
        "dry_run": dry_run,
        "batches": list(done.batches),
        "rows": done.rows,
        "deletes": done.deletes,
        "forgotten_versions": done.forgotten,
        "removed_from_wrong_shards": done.removed,
        "runs": [run.run_id for run in report.runs],
        "ledgers": [ledger_document(row.entry) for run in report.runs for row in run.ledgers],
        "before": [result.to_document(values=True) for result in done.before.values()],
        "after": None if done.after is None else [result.to_document(values=True) for result in done.after.values()],
        "equal": done.settled,
    }
    if done.error is not None:
        document |= to_document(done.error)
    document["refused"] = sorted(done.refused)
    rows = []
    for name, before in done.before.items():
        after = None if done.after is None else done.after[name]
        rows.append((name, before.differences, "" if after is None else after.differences, (after or before).verdict))
    shown: list[RenderableType] = [
        table(
            f"repair: {report.target}",
            ("table", "differed", "differ now", "verdict"),
            rows,
            omit_empty=("differ now",),
        )
    ]
    for result in (done.after or done.before).values():
        if result.findings:
            shown.append(findings_table(result))
    call.answer(document, *shown)
    if dry_run:
        output.note("nothing was staged or changed: --dry-run")
        return
    output.note(f"{counted(done.rows, 'row')} and {counted(done.deletes, 'delete')} staged")
    if done.after is None and done.batches:
        output.note("the next run applies them: `lockstep run`")
    for what, count in (
        ("removed from the wrong shards", done.removed),
        ("of the target replaced: --authoritative", done.forgotten),
    ):
        if count:
            output.note(f"{counted(count, 'row')} {what}")
