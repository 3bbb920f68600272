"""`lockstep status`: the progress of a pipeline's sources and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from cdc_core.cli.output import listing
from cdc_core.cli.performable import performable
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.model.readable import counted, moment

if TYPE_CHECKING:
    from cdc_core.meta.health import Problem


app = typer.Typer()

MOST_NOTES = 10
"""Problems that only inform and are shown without --all: a pipeline may have thousands of partial tables."""
MOST_ACCOUNTS = 50
"""Tables of a ledger that are shown without --all."""
MOST_COPIES = 20
"""Tables with existing rows that are shown without --all, and only those that are not copied."""


@pipeline_command(app)
def status(
    call: PipelineCall,
    every: Annotated[bool, typer.Option("--all", help="Show every note and every table.")] = False,
) -> None:
    """Show how far a pipeline is, problems first: sources, copies, targets, latest runs.

    \b
      lockstep status shop
      lockstep status shop --json

    Reads only the meta database. Each problem is shown until its cause is gone. Exit code: that of the first problem;
    75 if something is paused or late, 0 if nothing needs attention.
    """
    from cdc_core.operations.status_report import status_of

    with call.meta() as meta:
        report = status_of(call.pipeline, meta)
    problems = report.problems
    lines = [problem_lines(problem) for problem in problems]
    if not every:
        lines = lines[
            : sum(1 for problem in problems if problem.level.value != "noted") + MOST_NOTES
        ]  # notes come last
    if len(lines) < len(problems):
        more = len(problems) - len(lines)
        lines.append(Text(f"and {more:,} more notes: lockstep status {call.given} --all", style="yellow"))
    document = report.to_json()
    call.output.answer(document, *lines, *_tables(document, every=every))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


_STYLES = {"failed": "bold red", "paused": "bold yellow", "late": "bold yellow", "noted": "yellow"}


def problem_lines(problem: Problem) -> Text:
    """A problem for people, as errors are printed."""
    lines = Text.assemble(
        (f"{problem.level.value}: ", _STYLES[problem.level.value]), f"{problem.subject}: {problem.what}"
    )
    for name, value in (("at", problem.where), ("fix", performable(problem.remedy))):
        if value:
            lines.append(f"\n  {name:<4}", "bold").append(value)
    if problem.level.value == "failed":
        since = f", since {moment(problem.since_us)}" if problem.since_us else ""
        often = f", {problem.times:,} times" if problem.times > 1 else ""
        lines.append(f"\n  code {problem.code or '-'} ({problem.exit_class}{since}{often})", "dim")
    return lines


_LEDGER = "target table staged_rows key_changes winners superseded written equal stale absent quarantined problems"
_LEDGER_DETAILS = "key_changes superseded equal stale absent quarantined problems"
"""Columns of a ledger that are shown only if one of its rows has them."""


def ledger_table(
    title: str, ledgers: Sequence[Mapping[str, Any]], pipeline: str, *, every: bool = False
) -> list[RenderableType]:
    """The accounts of a run. Of more than MOST_ACCOUNTS only those that do not add up and the largest, unless every."""
    wrong = sum(1 for ledger in ledgers if ledger["problems"])
    kept = list(ledgers)
    if not every and len(kept) > MOST_ACCOUNTS:
        kept.sort(key=lambda ledger: (not ledger["problems"], -ledger["staged_rows"]))
        kept = kept[: max(MOST_ACCOUNTS, wrong)]
    title = f"{title}, which {'does not add up' if wrong else 'adds up'}"
    shown: list[RenderableType] = [listing(title, kept, _LEDGER, omit_empty=_LEDGER_DETAILS)]
    if more := len(ledgers) - len(kept):
        shown.append(Text(f"and {more:,} more tables, which add up: lockstep status {pipeline} --all"))
    return shown


def _copies(status: Mapping[str, Any], *, every: bool) -> list[RenderableType]:
    """The tables with rows from before their capture, as far as these are not copied; with every, all of them."""
    copies = [{"source": source["source"], **copy} for source in status["sources"] for copy in source.get("copies", ())]
    listed = [copy for copy in copies if every or copy["state"] != "copied"]
    if not listed:
        return []
    kept = listed if every else listed[:MOST_COPIES]
    known = "percent bytes rows_per_s copied_to updated"
    keys = f"source table state rows rows_estimated {known}"
    shown: list[RenderableType] = [listing("existing rows", kept, keys, omit_empty=known)]
    more, done = len(listed) - len(kept), len(copies) - len(listed)
    left = [f"{more:,} more tables that are not copied"] if more else []
    left += [counted(done, "copied table")] if done else []
    if left:
        shown.append(Text(f"and {' and '.join(left)}: lockstep status {status['pipeline']} --all"))
    return shown


def _tables(status: Mapping[str, Any], *, every: bool) -> list[RenderableType]:
    keys = "source position complete_to lag_s batches rows size_bytes holder"
    shown: list[RenderableType] = [listing(f"{status['pipeline']}: sources", status["sources"], keys)]
    shown += _copies(status, every=every)
    targets = [
        {
            **target,
            "waiting_batches": target["open"]["batches"],
            "waiting_rows": target["open"]["rows"],
            "batches_by_state": {
                state: count["batches"] for state, count in target["records"].items() if count["batches"]
            },
        }
        for target in status["targets"]
    ]
    for title, documents, columns in (
        ("targets", targets, "target waiting_batches waiting_rows batches_by_state last_error"),
        ("verifications", status["verifications"], "target mode verdict tables source_rows age_s"),
        ("latest runs", status["runs"], "run_id state by window updated"),
    ):
        if documents:
            shown.append(listing(title, documents, columns))
    if status["ledgers"]:
        shown += ledger_table("ledger of the latest run", status["ledgers"], status["pipeline"], every=every)
    return shown
