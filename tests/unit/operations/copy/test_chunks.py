"""Where a chunk ends if no server is asked."""

from __future__ import annotations

import pytest

from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.copy.chunks import computed_end

BIGINT = ColumnType("bigint")


def table(*key: ColumnType) -> TableSchema:
    return TableSchema("d", "t", tuple(Column(f"k{at}", kind, key_part=at) for at, kind in enumerate(key, 1)))


NUMBERED = table(BIGINT)


def test_a_chunk_of_dense_whole_numbers_ends_after_as_many_numbers_as_have_so_many_rows() -> None:
    assert computed_end(NUMBERED, ("100",), ("9999",), 50, 1.0) == ("150",)
    assert computed_end(NUMBERED, ("-100",), ("9999",), 50, 0.5) == ("0",)


def test_no_chunk_ends_after_the_greatest_key_of_the_copy() -> None:
    assert computed_end(NUMBERED, ("100",), ("149",), 50, 1.0) == ("149",)
    assert computed_end(NUMBERED, ("100",), ("150",), 50, 1.0) == ("150",)


@pytest.mark.parametrize(
    ("schema", "above", "limit", "density"),
    [
        pytest.param(NUMBERED, ("100",), ("9999",), 0.49, id="keys lie too far apart"),
        pytest.param(NUMBERED, ("100",), ("9999",), 0.0, id="nothing was read"),
        pytest.param(NUMBERED, (), ("9999",), 1.0, id="the first chunk"),
        pytest.param(NUMBERED, ("100",), (), 1.0, id="an empty table"),
        pytest.param(table(BIGINT, BIGINT), ("1", "2"), ("9", "9"), 1.0, id="two columns"),
        pytest.param(table(ColumnType("decimal", precision=9, scale=2)), ("1",), ("9",), 1.0, id="decimal"),
    ],
)
def test_where_keys_do_not_tell_how_many_rows_there_can_be_the_server_is_asked(
    schema: TableSchema, above: tuple[str, ...], limit: tuple[str, ...], density: float
) -> None:
    assert computed_end(schema, above, limit, 5, density) == ()
