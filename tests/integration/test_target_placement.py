"""A table of a target says itself which rows it has: no other rows are written to it, whatever meta knows."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.config import MysqlTarget
from cdc_core.errors import DataAtRisk
from cdc_core.targets.bookkeeping.placement import accept_placements
from cdc_core.targets.bookkeeping.table_states import states
from tests.lab.target_rows import Table, shop


def put(table: Table, number: int, **options: Any) -> None:
    table.write([shop("u", number, f"c{number}", number, number)], run=f"run{number}", **options)


def target_of(table: Table) -> MysqlTarget:
    rule = {"database": table.facts.database, "table": table.facts.table, "sharding": {"key": "id"}}
    return MysqlTarget.model_validate({"name": "t", "connections": ["env:TARGET"], "tables": {"shop.t": rule}})


def test_a_table_takes_no_rows_of_another_shard_or_layout(table: Table) -> None:
    target = target_of(table)
    assert [state.placement for _, _, state in states(target, ["shop.t"])] == [None]
    put(table, 1, placement="shard 0 of 4 by mod(id)")
    put(table, 2, placement="shard 0 of 4 by mod(id)")
    for other in ("shard 1 of 4 by mod(id)", "shard 0 of 8 by mod(id)", "shard 0 of 4 by hash(id)", "one table"):
        with pytest.raises(DataAtRisk) as caught:
            put(table, 3, placement=other)
        assert (caught.value.code, caught.value.where) == ("target.layout", table.facts.name)
    assert [n for (n,) in table.query(f"SELECT id FROM {table.facts.name} ORDER BY id")] == [1, 2]
    assert not table.query(f"SELECT * FROM {table.facts.database}._lockstep_ledger WHERE run_id = 'run3'")
    ((_, place, state),) = states(target, ["shop.t"])
    assert (state.placement, place.placement) == ("shard 0 of 4 by mod(id)", "shard 0 of 1 by mod(id)")
    told: list[str] = []
    accept_placements(target, ["shop.t"], told.append)
    accept_placements(target, ["shop.t"], told.append)
    assert told == [table.facts.name]
    put(table, 3, placement="shard 0 of 1 by mod(id)")


def test_a_write_that_is_undone_notes_nothing(table: Table) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise DataAtRisk("it was stopped", code="target.row_error", remedy="none")

    with pytest.raises(DataAtRisk):
        put(table, 1, placement="shard 0 of 4 by mod(id)", transact=fails)
    put(table, 1, placement="shard 0 of 8 by mod(id)")
