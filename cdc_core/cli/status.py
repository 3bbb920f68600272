"""`lockstep status`: the progress of a pipeline's sources and targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import DEFAULT_PIPELINES, JsonOption, PipelineArgument, PipelinesOption, load_pipeline
from cdc_core.cli.output import CliOutput, duration, moment, size, table
from cdc_core.cli.performable import performable
from cdc_core.model.documents import plain
from cdc_core.windows import parse_moment, to_us
from cdc_core.words import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.config import Pipeline
    from cdc_core.meta import CopyStatus, RunRow, SourceStatus, StateCount, Status, Verification
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
    every: Annotated[
        bool, typer.Option("--all", help="Show every note and every table of the ledger, however many there are.")
    ] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show how far a pipeline is: its sources' positions and lag, copies of existing rows, targets, latest runs.

    \b
      lockstep status shop
      lockstep status shop --all
      lockstep status shop --json

    Reads only the meta database, neither source nor target. Problems come first: rows that differ, or that a target
    rejected and lacks; the last error of an extract, a plan or a run that has not succeeded since; copies that somebody
    has paused while tables wait for them; a source or target that is late by the schedule; a source that was never
    extracted, or that will purge its log soon. Each is shown until its cause is gone. The exit code is the class of the
    first of them (docs/errors.md): 0 only if nothing needs attention, 75 if something is paused or late, or was never
    extracted. If there are many notes and tables, only some are shown, with a count of the others, unless you pass
    --all; --json always has all.
    """
    from cdc_core.meta import Meta

    _, parsed = load_pipeline(pipeline, pipelines)
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        found = meta.status.find([target.name for target in parsed.scheduled_targets])
    known = {one.source for one in found.sources}
    waiting = [source.name for source in parsed.sources if source.name not in known]
    answer = status_document(found, waiting) | {"ledgers": [ledger_document(one.entry) for one in found.ledgers]}
    looked = health(found, parsed)
    answer |= {"problems": [problem_document(one) for one in looked]}
    said = [problem_lines(one) for one in looked]
    if not every:
        said = said[: sum(1 for one in looked if one.level.value != "noted") + MOST_NOTES]  # notes come last
    if len(said) < len(looked):
        said.append(
            Text(f"and {len(looked) - len(said):,} more notes: lockstep status {pipeline} --all", style="yellow")
        )
    CliOutput(as_json).answer(answer, *said, *_tables(found, waiting, every=every))
    code = next((one.exit_code for one in looked if one.exit_code), 0)
    if code:
        raise typer.Exit(code)


def health(found: Status, pipeline: Pipeline) -> tuple[Problem, ...]:
    """The problems of a pipeline, the worst first."""
    from cdc_core.cli.cutover_status import left_alone
    from cdc_core.meta.health import problems

    sources = [one.name for one in pipeline.sources]
    left = [left_alone(one, stops=pipeline.cutover.stop_with is not None) for one in found.cutovers]
    return (
        *filter(None, left),
        *problems(found, pipeline.windows, sources, [target.name for target in pipeline.scheduled_targets]),
    )


def problem_document(one: Problem) -> dict[str, Any]:
    """A problem, for --json and for the page in Airflow."""
    return {
        "level": one.level.value,
        "subject": one.subject,
        "what": one.what,
        "where": one.where,
        "remedy": performable(one.remedy),
        "code": one.code,
        "class": one.exit_class,
        "since": moment(one.since_us),
        "times": one.times,
    }


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


def status_document(found: Status, waiting: list[str]) -> dict[str, Any]:
    """The figures of a pipeline, for --json and for the page in Airflow. waiting: sources never extracted."""
    return {
        "pipeline": found.pipeline,
        "now": moment(found.now_us),
        "complete_to": moment(found.watermark_us),
        "sources": [_source(one) for one in found.sources] + [{"source": name, "position": None} for name in waiting],
        "targets": [
            {
                "target": one.target,
                "pending": _count(one.pending),
                "open": _count(one.waiting),
                "records": {state.value: _count(count) for state, count in one.records.items()},
                "last_error": one.last_error,
            }
            for one in found.targets
        ],
        "runs": [run_document(one) for one in found.runs],
        "verifications": [one for each in found.verifications for one in verification_documents(each, found.now_us)],
    }


def verification_documents(one: Verification, now_us: int) -> list[dict[str, Any]]:
    """The latest evidence of each mode of a target, the newest first, for --json and for the page in Airflow; and the
    verification that is under way or was interrupted, without evidence."""
    found = [
        {"target": one.target, "mode": mode, **said, "age_s": round(now_us / 1e6 - _seconds(said["ended"]), 3)}
        for mode, said in one.evidence.items()
    ]
    found.sort(key=lambda said: str(said["ended"]), reverse=True)
    if one.progress:
        found.append({"target": one.target, "mode": "", "unfinished": moment(one.updated_us)})
    # The latest knows of all differences that were found; earlier ones may have been found gone since.
    earlier = [said | {"differing": {}} for said in found[1:]]
    return [said | {"verdict": verification_verdict(said)} for said in [*found[:1], *earlier]]


def verification_verdict(one: Mapping[str, Any]) -> str:
    """What a document of `verification_documents` says, for people."""
    if "unfinished" in one:
        return f"not finished; the last range was verified at {one['unfinished']}"
    verdict = _own_verdict(one)
    differing = one.get("differing", {})
    known = sum(differing.values())
    if known > one.get("differences", known):
        verdict += f"; {known:,} with those of earlier verifications, in {', '.join(sorted(differing))}"
    return verdict


def _own_verdict(one: Mapping[str, Any]) -> str:
    if "why" in one:
        return str(one["why"])
    if one["differences"]:
        return f"{counted(one['differences'], 'difference')}"
    if one["not_compared"]:
        return f"{counted(one['not_compared'], 'table')} not compared"
    if one["unsettled"]:
        return f"{counted(one['unsettled'], 'row')} unsettled"
    return _VERDICTS[one["mode"]]


_VERDICTS = {
    "ordered": "equal", "random": "nothing found in a sample", "count": "as many rows",
    "max-id": "as many rows, and the greatest keys",
}  # fmt: skip


def _seconds(moment_: str) -> float:
    return to_us(parse_moment(moment_)) / 1e6


def engine(*, by_driver: bool) -> str:
    """What a run was done by, as it is shown."""
    return "driver" if by_driver else "spark"


def run_document(run: RunRow) -> dict[str, Any]:
    """A run, for --json."""
    return {
        "run_id": run.run_id,
        "state": run.state.value,
        "window": [moment(edge) for edge in run.window] if run.window else None,
        "last_error": run.last_error,
        "airflow_run_id": run.airflow_run_id,
        "by": engine(by_driver=run.by_driver),
        "updated": moment(run.updated_us),
    }


def _source(one: SourceStatus) -> dict[str, Any]:
    return {
        "source": one.source,
        "position": one.checkpoint.position.to_json(),
        "gtid_set": one.checkpoint.gtid_set,
        "complete_to": moment(one.checkpoint.watermark_us),
        "lag_s": None if one.lag_us is None else one.lag_us / 1e6,
        "holder": one.holder,
        "ring": asdict(one.ring),
        "epoch": one.epoch,
        "batches": one.batches,
        "rows": one.rows,
        "size_bytes": one.size_bytes,
        "notes": list(one.notes),
        "retention_s": one.retention_s,
        "partial": {table: plain(covered) for table, covered in one.partial.items()},
        "copier": one.copier,
        "copies_paused": moment(one.copies_paused_us),
        "copies_paused_by": one.copies_paused_by,
        "copies": [copy_document(each) for each in one.copies],
    }


def copy_document(one: CopyStatus) -> dict[str, Any]:
    """A table with rows from before its capture, for --json and for the page in Airflow."""
    return {
        "table": one.table,
        "state": one.state.value,
        "why": one.why,
        "rows": one.rows,
        "rows_estimated": one.rows_estimated,
        "percent": one.percent,
        "bytes": one.size_bytes,
        "bytes_estimated": one.bytes_estimated,
        "rows_per_s": None if one.rows_s is None else round(one.rows_s, 1),
        "bytes_per_s": None if one.bytes_s is None else round(one.bytes_s, 1),
        "seconds_left": None if one.left_s is None else round(one.left_s, 1),
        "started": moment(one.started_us),
        "updated": moment(one.updated_us),
        "copied_to": one.copied_to,
        "chunk_retries": one.chunk_retries,
        "chunk_error": one.chunk_error,
    }


def _count(count: StateCount) -> Mapping[str, int]:
    return {"batches": count.batches, "rows": count.rows}


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


def ledger_document(entry: Any) -> dict[str, Any]:
    """An account of a run, for --json."""
    names = ("run_id", "target", "table", "staged_rows", "key_changes", "winners", "superseded", "written", "stale")
    return {name: getattr(entry, name) for name in (*names, "absent", "equal", "quarantined")} | {
        "problems": list(entry.problems())
    }


def ledger_row(entry: Any) -> tuple[object, ...]:
    """The same as a table's row, in LEDGER_COLUMNS."""
    return (
        entry.target, entry.table, entry.staged_rows, entry.key_changes, entry.winners, entry.superseded,
        entry.written, entry.equal, entry.stale, entry.absent, entry.quarantined,
        "; ".join(entry.problems()) or "yes",
    )  # fmt: skip


def _bytes_of(one: CopyStatus) -> str:
    if not one.size_bytes:
        return ""
    whole = one.bytes_estimated
    return size(one.size_bytes) + (f" of ~{size(whole)}" if whole is not None and whole > one.size_bytes else "")


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
            _bytes_of(one),
            "" if one.rows_s is None else f"{one.rows_s:,.0f}",
            "" if one.bytes_s is None else f"{size(int(one.bytes_s))}/s",
            "" if one.left_s is None else f"~{duration(one.left_s)}",
            one.copied_to or moment(one.updated_us),
        )
        for source, one in kept
    ]  # fmt: skip
    columns = ("source", "table", "copy", "rows read", "of", "done", "size", "rows/s", "rate", "time left", "as of")
    unknown = ("size", "rows/s", "rate", "time left")
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


def _tables(found: Status, waiting: list[str], *, every: bool) -> list[RenderableType]:
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
