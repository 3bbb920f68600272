"""Keys by which a table is cut into chunks."""

from __future__ import annotations

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.copy.key_ranges import after, downwards, equal, literals, ordered, selected, up_to
from tests.lab.refusals import raises


def test_a_set_whose_numbers_a_double_does_not_tell_apart_cuts_no_table() -> None:
    labels = tuple(map(str, range(54)))

    def table(kind: ColumnType) -> TableSchema:
        return TableSchema("shop", "t", (Column("s", kind, False, key_part=1),))

    assert selected(table(ColumnType("set", labels=labels[:53]))) == "`s` + 0"
    with raises(Refused, "snapshot.not_copyable"):
        selected(table(ColumnType("set", labels=labels)))


def test_a_key_says_for_each_column_whether_greater_or_smaller_values_come_after_it() -> None:
    columns = (Column("g", ColumnType("int"), key_part=1), Column("k", ColumnType("int"), key_part=2))
    schema = TableSchema("shop", "t", columns)
    key = literals(schema, [3, 7], [False, True])
    assert key == ("3", "7 DESC")
    assert after(schema, key) == "(`g` >= 3 AND ((`g` > 3) OR (`g` = 3 AND `k` < 7)))"
    assert up_to(schema, key) == "(`g` <= 3 AND ((`g` < 3) OR (`g` = 3 AND `k` >= 7)))"
    assert equal(schema, key) == "`g` = 3 AND `k` = 7"
    assert ordered(schema, downwards(key)) == "`g`, `k` DESC"
    assert ordered(schema, downwards(key), reverse=True) == "`g` DESC, `k`"
