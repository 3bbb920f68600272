"""Which rows a table of a target is for, kept in the target itself: in the row that table_states.py has of the table.

The first write to a table notes its shard and the layout; every later one requires the same, in its own transaction and
under the lock of the table. Meta can be lost, and is then rebuilt from the stage, which knows nothing of shards. A run
under another sharding would otherwise write rows to other tables than those that have them, and no error would tell. (A
run that finds other names in the rules is stopped by apply.lost_writes.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.errors import DataAtRisk
from cdc_core.targets.bookkeeping.fence import require_let_through
from cdc_core.targets.bookkeeping.table_states import NOTHING, TableState, change_states, note, states_in
from cdc_core.targets.reading.sharding import ShardTable
from cdc_core.targets.reading.table_facts import TableFacts


def begin_write(cursor: Any, facts: TableFacts, pipeline: str, placement: str) -> None:
    """First in a transaction that writes to the table, under its lock: no fence keeps the pipeline out, and the table
    has these rows, from now on if it has none. Raises Refused (target.fenced), DataAtRisk (target.layout)."""
    before = states_in(cursor, facts.database, facts.table).get(facts.table)
    state = before or NOTHING
    require_let_through(state, facts.name, pipeline)
    if state.placement is None:
        note(cursor, facts.database, facts.table, before, replace(state, placement=placement))
    elif state.placement != placement:
        raise misplaced(facts.name, state.placement, placement)


def misplaced(name: str, noted: str, wanted: str) -> DataAtRisk:
    return DataAtRisk(
        f"The table was written as {noted}, and would now be written as {wanted}: rows would stay in the wrong "
        "place, beside their newer versions.",
        where=name,
        code="target.layout",
        remedy="restore the former sharding and names; or give the target a new name and new tables, so that "
        "everything staged is applied to it; or, if every row already is where it belongs, `lockstep target layout "
        "PIPELINE --accept TABLE`",
    )


def accept_placements(
    target: MysqlTarget, logical: Sequence[str], report: Callable[[str], None] = lambda name: None
) -> None:
    """From now on every row of these tables is where the rules have it. Tables that were never written are left out.
    Safe to repeat. Raises as table_states.change_states."""
    accepted: set[str] = set()

    def accept(name: str, place: ShardTable, state: TableState) -> TableState | None:
        if state.placement in (None, place.placement):
            return None
        accepted.add(place.name)
        return replace(state, placement=place.placement)

    for _, place, _ in change_states(target, logical, accept):
        if place.name in accepted:
            report(place.name)
