"""Fences keep Lockstep's writes out of tables of a target: those of a late run, a replay or a repair, too.

A fence is noted in the row that table_states.py has of the table. A write reads that row in its transaction, under the
lock by which the writers of a table take turns. Fences are raised and lowered under that lock, too. So once a fence is
raised, no write is under way, and none begins.

A fence has an owner: the cutovers between two pipelines, or nobody. Tables to which an application was led by one
cutover, and which it leaves by another, keep the fence of the first, so that what fed them before is still kept out. It
lets one pipeline through: the way back to them.

A fence may keep out one pipeline alone: the way back to tables from which no cutover has led the application away yet.

Reading the table, verifying it and altering it are not writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.errors import Refused, TargetFenced
from cdc_core.targets.bookkeeping.table_states import (
    ALL,
    NOTE_CHARS,
    Fence,
    TableState,
    change_states,
    states_in,
)
from cdc_core.targets.reading.sharding import ShardTable
from cdc_core.targets.reading.table_facts import TableFacts

Report = Callable[[str], None]
"""Receives the name of each table whose fence was changed."""


def require_no_fence(cursor: Any, facts: TableFacts, pipeline: str) -> None:
    """In a transaction in which the pipeline writes to the table, under its lock. Raises Refused (target.fenced)."""
    state = states_in(cursor, facts.database, facts.table).get(facts.table)
    if state is not None:
        require_let_through(state, facts.name, pipeline)


def require_let_through(state: TableState, table: str, pipeline: str) -> None:
    """Raises Refused (target.fenced)."""
    if state.fence is not None and state.fence.keeps_out(pipeline):
        raise fenced(table, state.fence.note)


def fenced(table: str, note: str) -> Refused:
    return TargetFenced(
        f"There is a fence around the table: {note}.",
        where=table,
        remedy="nothing was written. If a cutover has led an application to this table, this pipeline has done its "
        "work: pause its runs. If Lockstep is to write to the table again, and no application does, lower the fence "
        "(`lockstep target fence PIPELINE --lower`)",
    )


def raise_fences(
    target: MysqlTarget, logical: Sequence[str], note: str, report: Report = lambda name: None, *, owner: str = ""
) -> None:
    """Keeps Lockstep's writes out of all physical tables of the logical ones, from the return on. Safe to repeat, also
    after half of it was done; a fence that is up keeps its owner, and lets nobody through. It keeps its note, too,
    unless it has let a pipeline through.

    note: why, in up to NOTE_CHARS characters. Raises as table_states.change_states.
    """

    def raised(fence: Fence | None) -> Fence:
        if fence is None:
            return Fence(note[:NOTE_CHARS], owner)
        return replace(fence, note=note[:NOTE_CHARS], passes="") if fence.passes else fence

    _change(target, logical, raised, report)


def bar(target: MysqlTarget, logical: Sequence[str], pipeline: str, note: str, owner: str) -> None:
    """Keeps one pipeline out of the tables until `admit` lets it in; other fences around them stay as they are. Safe to
    repeat. Raises as raise_fences."""

    def barred(fence: Fence | None) -> Fence:
        return replace(fence or Fence(note[:NOTE_CHARS], owner, ALL), bars=pipeline)

    _change(target, logical, barred)


def lower_fences(target: MysqlTarget, logical: Sequence[str], report: Report = lambda name: None) -> None:
    """Lets Lockstep write to the tables again. Safe to repeat. Raises as raise_fences."""
    _change(target, logical, lambda fence: None, report)


def admit(target: MysqlTarget, logical: Sequence[str], pipeline: str, owner: str, *, noted: str = "") -> None:
    """Lets a pipeline write to the tables again: fences that have this owner, or none, are lowered; the others, and
    those that bar another pipeline, let it through. noted: only fences with notes that begin so. Safe to repeat. Raises
    as raise_fences."""

    def admitted(fence: Fence | None) -> Fence | None:
        if fence is None or not fence.note.startswith(noted):
            return fence
        bars = "" if fence.bars == pipeline else fence.bars
        if fence.owner in ("", owner) and not bars:
            return None
        return replace(fence, passes=ALL if fence.passes == ALL else pipeline, bars=bars)

    _change(target, logical, admitted)


def _change(
    target: MysqlTarget,
    logical: Sequence[str],
    change: Callable[[Fence | None], Fence | None],
    report: Report = lambda name: None,
) -> None:
    def changed(name: str, place: ShardTable, state: TableState) -> TableState | None:
        fence = change(state.fence)
        return None if fence is None and state.fence is None else replace(state, fence=fence)

    for _, place, _ in change_states(target, logical, changed):
        report(place.name)
