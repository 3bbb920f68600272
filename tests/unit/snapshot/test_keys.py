"""Keys by which a table is cut into chunks."""

from __future__ import annotations

import pytest

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.snapshot.keys import selected


def test_a_set_whose_numbers_a_double_does_not_tell_apart_cuts_no_table() -> None:
    labels = tuple(map(str, range(54)))

    def table(kind: ColumnType) -> TableSchema:
        return TableSchema("shop", "t", (Column("s", kind, False, key_part=1),))

    assert selected(table(ColumnType("set", labels=labels[:53]))) == "`s` + 0"
    with pytest.raises(Refused) as refused:
        selected(table(ColumnType("set", labels=labels)))
    assert refused.value.code == "snapshot.key_type"
