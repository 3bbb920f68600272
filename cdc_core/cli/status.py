"""`lockstep status`: the progress of a pipeline's sources and targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import DEFAULT_PIPELINES, JsonOption, PipelineArgument, PipelinesOption, load_pipeline
from cdc_core.cli.output import CliOutput, table
from cdc_core.cli.performable import performable
from cdc_core.model.readable import counted, duration, moment, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.meta import Status
    from cdc_core.meta.health import Problem


def register(app: typer.Typer) -> None:
    app.command()(status)


MOST_NOTES = 10
"""Problems that only inform and are shown without --all: a pipeline may have thousands of partial tables."""
MOST_ACCOUNTS = 50
"""Tables of a ledger that are shown without --all."""
MOST_COPIES = 20
"""Tables with existing rows that are shown without --all, and only those that are not copied."""


def status(
    pipeline: PipelineArgument,
    every: Annotated[bool, typer.Option("--all", help="Show every note and every table.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show how far a pipeline is, problems first: sources, copies, targets, latest runs.

    \b
      lockstep status shop
      lockstep status shop --json

    Reads only the meta database. Each problem is shown until its cause is gone. Exit code: that of the first problem;
    75 if something is paused or late, 0 if nothing needs attention.
    """
    from cdc_core.meta import Meta
    from cdc_core.operations.status_report import status_of

    _, parsed = load_pipeline(pipeline, pipelines)
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        report = status_of(parsed, meta)
    problems = report.problems
    lines = [problem_lines(one) for one in problems]
    if not every:
        lines = lines[: sum(1 for one in problems if one.level.value != "noted") + MOST_NOTES]  # notes come last
    if len(lines) < len(problems):
        more = len(problems) - len(lines)
        lines.append(Text(f"and {more:,} more notes: lockstep status {pipeline} --all", style="yellow"))
    CliOutput(as_json).answer(report.to_json(), *lines, *_tables(report.status, report.waiting, every=every))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


_STYLES = {"failed": "bold red", "paused": "bold yellow", "late": "bold yellow", "noted": "yellow"}


def problem_lines(one: Problem) -> Text:
    """A problem for people, as errors are printed."""
    lines = Text.assemble((f"{one.level.value}: ", _STYLES[one.level.value]), f"{one.subject}: {one.what}")
    for name, value in (("at", one.where), ("fix", performable(one.remedy))):
        if value:
            lines.append(f"\n  {name:<4}", "bold").append(value)
    if one.level.value == "failed":
        since = f", since {moment(one.since_us)}" if one.since_us else ""
        often = f", {one.times:,} times" if one.times > 1 else ""
        lines.append(f"\n  code {one.code or '-'} ({one.exit_class}{since}{often})", "dim")
    return lines


LEDGER_COLUMNS = (
    "target", "table", "staged", "key changes", "winners", "superseded", "written", "equal", "stale", "absent",
    "quarantined", "adds up",
)  # fmt: skip


LEDGER_DETAILS = ("key changes", "superseded", "equal", "stale", "absent", "quarantined")
"""Columns of a ledger that are shown only if one of its rows has them."""


def ledger_table(title: str, entries: Iterable[Any], *, pipeline: str, every: bool = False) -> list[RenderableType]:
    """The accounts of a run. Of more than MOST_ACCOUNTS only those that do not add up and the largest, unless every."""
    found = list(entries)
    kept = found
    if not every and len(found) > MOST_ACCOUNTS:
        wrong = [entry for entry in found if entry.problems()]
        largest = sorted((one for one in found if not one.problems()), key=lambda one: -one.staged_rows)
        kept = wrong + largest[: max(0, MOST_ACCOUNTS - len(wrong))]
    rows = [ledger_row(entry) for entry in kept]
    shown: list[RenderableType] = [
        table(title, LEDGER_COLUMNS, rows, numbers=LEDGER_COLUMNS[2:-1], omit_empty=LEDGER_DETAILS)
    ]
    if len(kept) < len(found):
        shown.append(
            Text(f"and {len(found) - len(kept):,} more tables, which add up: lockstep status {pipeline} --all")
        )
    return shown


def ledger_row(entry: Any) -> tuple[object, ...]:
    """The same as a table's row, in LEDGER_COLUMNS."""
    return (
        entry.target, entry.table, entry.staged_rows, entry.key_changes, entry.winners, entry.superseded,
        entry.written, entry.equal, entry.stale, entry.absent, entry.quarantined,
        "; ".join(entry.problems()) or "yes",
    )  # fmt: skip


def _copies(found: Status, *, every: bool) -> list[RenderableType]:
    """The tables with rows from before their capture, as far as these are not copied; with every, all of them."""
    copies = [(source, one) for source in found.sources for one in source.copies]
    listed = [(source, one) for source, one in copies if every or one.state.value != "copied"]
    if not listed:
        return []
    kept = listed if every else listed[:MOST_COPIES]
    rows = [
        (
            source.source, one.table, one.state.value, one.rows or "",
            "?" if one.rows_estimated is None else f"{'' if one.state.value == 'read' else '~'}{one.rows_estimated:,}",
            "" if one.percent is None else f"{one.percent:.0f} %",
            size(one.size_bytes) if one.size_bytes else "",
            "" if one.rows_s is None else f"{one.rows_s:,.0f}",
            one.copied_to or moment(one.updated_us),
        )
        for source, one in kept
    ]  # fmt: skip
    columns = ("source", "table", "copy", "rows read", "of", "done", "size", "rows/s", "as of")
    unknown = ("size", "rows/s")
    numbers = ("rows read", "of", "done", *unknown)
    shown: list[RenderableType] = [table("existing rows", columns, rows, numbers=numbers, omit_empty=unknown)]
    for source, one in kept:
        if one.chunk_retries or one.chunk_error:
            last = f"; the latest try failed: {one.chunk_error}" if one.chunk_error else ""
            shown.append(Text(f"{source.source}: {one.table}: chunks read again: {one.chunk_retries}{last}"))
    done = len(copies) - len(listed)
    more = len(listed) - len(kept)
    if more or done:
        left = [f"{more:,} more tables that are not copied"] * bool(more) + [f"{counted(done, 'copied table')}"] * bool(
            done
        )
        shown.append(Text(f"and {' and '.join(left)}: lockstep status {found.pipeline} --all"))
    return shown


def _tables(found: Status, waiting: Sequence[str], *, every: bool) -> list[RenderableType]:
    from cdc_core.operations.status_report import engine, verification_documents

    sources: list[tuple[object, ...]] = [
        (
            one.source, str(one.checkpoint.position), moment(one.checkpoint.watermark_us),
            "unknown" if one.lag_us is None else duration(one.lag_us / 1e6),
            one.batches, one.rows, size(one.size_bytes), one.holder or "not running",
        )
        for one in found.sources
    ]  # fmt: skip
    sources += [(name, "not extracted yet", "", "", 0, 0, "", "not running") for name in waiting]
    shown: list[RenderableType] = [
        table(
            f"{found.pipeline}: sources",
            ("source", "position", "complete up to (UTC)", "lag", "batches", "rows", "size", "extractor"),
            sources,
            numbers=("lag", "batches", "rows", "size"),
        )
    ]
    shown += _copies(found, every=every)
    if found.targets:
        taken = [
            (
                one.target, one.waiting.batches, one.waiting.rows,
                ", ".join(f"{state.value} {count.batches}" for state, count in one.records.items() if count.batches),
                one.last_error,
            )
            for one in found.targets
        ]  # fmt: skip
        columns = ("target", "waiting batches", "waiting rows", "batches by state", "last error")
        shown.append(table("targets", columns, taken, numbers=("waiting batches", "waiting rows")))
    checked = [one for each in found.verifications for one in verification_documents(each, found.now_us)]
    if checked:
        lines = [
            (one["target"], one["mode"], one["verdict"], one.get("tables", ""), one.get("source_rows", ""),
             duration(one["age_s"]) if "age_s" in one else "")
            for one in checked
        ]  # fmt: skip
        heads = ("target", "mode", "verified", "tables", "rows", "age")
        shown.append(table("verifications", heads, lines, numbers=("tables", "rows", "age")))
    if found.runs:
        runs = [
            (one.run_id, one.state.value, engine(by_driver=one.by_driver),
             " – ".join(moment(e) for e in one.window or ()), moment(one.updated_us))
            for one in found.runs
        ]  # fmt: skip
        shown.append(table("latest runs", ("run", "state", "by", "window (UTC)", "last change (UTC)"), runs))
    if found.ledgers:
        accounts = (one.entry for one in found.ledgers)
        shown += ledger_table("ledger of the latest run", accounts, pipeline=found.pipeline, every=every)
    return shown
