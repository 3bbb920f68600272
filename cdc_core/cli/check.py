"""`lockstep check`: whether a pipeline can run, and what to do where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cdc_core.cli.performable import performable
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.cli.run import driver
from cdc_core.model.readable import counted

if TYPE_CHECKING:
    from cdc_core.operations.check import CheckFinding

app = typer.Typer()

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@pipeline_command(app)
def check(
    call: PipelineCall,
    show_all: Annotated[bool, typer.Option("--verbose", "-v", help="Also show what is fine.")] = False,
    spark: Annotated[bool, typer.Option(help="Ask the executors of a Spark on other machines.")] = True,
    spark_master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask the executors of this master."),
    ] = None,
) -> None:
    """Check everything that a pipeline needs before it runs. Each finding says how to fix it.

    \b
      lockstep check shop
      lockstep check shop --spark-master spark://spark.example:7077

    These are the checks that extract and run make: connections, grants, server settings, stage, meta and target tables.
    A tiny job asks the executors of a Spark that is not on this machine. Exit code: that of the worst finding.
    """
    from cdc_core.operations.apply.jobs import is_local
    from cdc_core.operations.check import check as preflight

    parsed = call.pipeline
    master = spark_master or parsed.spark.master
    if not spark or is_local(master) or not parsed.targets:
        report = preflight(parsed)
    else:
        with driver(parsed, call.store(), master) as executors:
            report = preflight(parsed, spark=executors.check)
    worst = report.worst
    document = {
        "ok": worst is None,
        "findings": [
            {
                "status": finding.status,
                "subject": finding.subject,
                "what": finding.what,
                "remedy": performable(finding.remedy),
                "code": finding.error.code if finding.error else "",
                "class": finding.error.exit_class if finding.error else "",
            }
            for finding in report.findings
        ],
    }
    shown: list[RenderableType] = []
    for status, style in reversed(STYLES.items()):
        if status != "ok" or show_all:
            shown += _lines(status, style, [finding for finding in report.findings if finding.status == status])
    count = {status: sum(finding.status == status for finding in report.findings) for status in STYLES}
    hidden = "" if show_all or not count["ok"] else " (-v lists them)"
    summary = f"{counted(count['fail'], 'problem')}, {counted(count['warn'], 'warning')}, {count['ok']} ok{hidden}"
    call.answer(document, *shown, summary)
    if worst is not None:
        raise typer.Exit(worst.exit_code)


def _lines(status: str, style: str, findings: Sequence[CheckFinding]) -> list[RenderableType]:
    """One entry for each cause, with everything that it concerns."""
    causes: dict[tuple[str, str], list[CheckFinding]] = {}
    for number, finding in enumerate(findings):
        # An error without its place; a warning unchanged; each passed check by itself.
        cause = (f"{finding.error.code} {finding.error.what}" if finding.error else finding.what, finding.remedy)
        causes.setdefault(cause if status != "ok" else (str(number), ""), []).append(finding)
    made: list[RenderableType] = []
    for of_cause in causes.values():
        entry = Table.grid(padding=(0, 2))
        entry.add_column(no_wrap=True, min_width=4)
        entry.add_column(overflow="fold")
        first = of_cause[0]
        subjects = ", ".join(dict.fromkeys(finding.subject for finding in of_cause))
        what = first.error.what if first.error is not None and len(of_cause) > 1 else first.what
        if status == "ok":
            entry.add_row(Text(status, style=style), f"{subjects}: {what}")
        else:
            entry.add_row(Text(status, style=style), Text(subjects, style="bold"))
            entry.add_row("", Text(what))
            if first.remedy:
                entry.add_row(Text("fix", style="bold green"), Text(performable(first.remedy)))
            if first.error is not None:
                entry.add_row("", Text(f"code {first.error.code}", style="dim"))
        made.append(entry)
    return made
