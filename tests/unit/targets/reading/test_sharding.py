"""Which shard a row belongs to never changes: values are pinned."""

from __future__ import annotations

import zlib
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from cdc_core.config import MysqlTarget, Sharding
from cdc_core.errors import DataAtRisk, LockstepError, Refused, UsageError
from cdc_core.model.merged_columns import merged_type
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.targets.reading.destination import open_destination
from cdc_core.targets.reading.sharding import shard_tables, shards_of
from tests.lab.refusals import raises

MOD = Sharding(key="id", databases=2, tables=4)
HASH = Sharding(key="id", function="hash", databases=2, tables=4)


@pytest.mark.parametrize(
    ("values", "tables", "shards"),
    [
        (pa.array([0, 7, 8, -1, -8, -9, 2**62 + 3]), 8, [0, 7, 0, 7, 0, 7, 3]),
        *(
            (pa.array([0, 5, 8, 100], kind), 8, [0, 5, 0, 4])
            for kind in (pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.decimal128(20, 0))
        ),
        *((pa.array([2**64 - 1, 2**64 - 2], kind), 10, [5, 4]) for kind in (pa.uint64(), pa.decimal128(20, 0))),
    ],
)
def test_mod_is_never_negative_and_the_same_whatever_the_width_of_the_integer(
    values: pa.Array, tables: int, shards: list[int]
) -> None:
    assert shards_of(values, Sharding(key="id", tables=tables)).tolist() == shards


@pytest.mark.parametrize(
    ("value", "text"),
    [("abc", "abc"), (42, "42"), (b"abc", "abc"), ("ä", "ä")]
    + [(Decimal(text), text) for text in ("1.50000000", "0.00000000", "0.00000001", "-0.00000010", "-123.00000000")],
)
def test_hash_is_the_servers_crc32_of_the_text(value: Any, text: str) -> None:
    """SELECT CRC32('abc') says 891568578. A decimal has no exponent."""
    assert zlib.crc32(b"abc") == 891568578
    kind = pa.decimal128(20, 8) if isinstance(value, Decimal) else None
    sharding = Sharding(key="id", function="hash", databases=16, tables=64)
    assert shards_of(pa.array([value], kind), sharding)[0] == zlib.crc32(text.encode()) % 1024


@pytest.mark.parametrize("values", [pa.array(["1"]), pa.array([1.0]), pa.array([Decimal("1.5")])])
def test_mod_refuses_what_is_no_integer(values: pa.Array) -> None:
    with raises(Refused, "config.table_rule"):
        shards_of(values, MOD)


def ranges(*bounds: Any) -> Sharding:
    return Sharding(key="id", function="range", bounds=bounds, tables=len(bounds) + 1)


@pytest.mark.parametrize(
    ("bounds", "values", "shards"),
    [
        ((0, 100), pa.array([-5, 0, 99, 100, 10**12]), [0, 1, 1, 2, 2]),
        ((2**63,), pa.array([2**63 - 1, 2**63, 2**64 - 1], pa.uint64()), [0, 1, 1]),
        ((10,), pa.array([9, 10], pa.decimal128(20, 0)), [0, 1]),
        ((10,), pa.array([Decimal("9.99"), Decimal("10.00")], pa.decimal128(10, 2)), [0, 1]),
        ((10,), pa.array([Decimal("9.99"), Decimal("10.00")], pa.decimal128(38, 30)), [0, 1]),
        (("M", "a", "é"), pa.array(["", "L", "M", "Z", "a", "z", "é", "😀"]), [0, 0, 1, 1, 2, 2, 3, 3]),
        (("2026-01-01",), pa.array([date(2025, 12, 31), date(2026, 1, 1)]), [0, 1]),
        (
            ("2026-01-01T00:00:00.000001",),
            pa.array([datetime(2026, 1, 1), datetime(2026, 1, 1, microsecond=1)], pa.timestamp("us", tz="UTC")),
            [0, 1],
        ),
    ],
)
def test_a_range_begins_at_its_bound(bounds: tuple[Any, ...], values: pa.Array, shards: list[int]) -> None:
    assert shards_of(values, ranges(*bounds)).tolist() == shards


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ((1,), pa.array(["1"])),
        (("1",), pa.array([1])),
        (("soon",), pa.array([date(2026, 1, 1)])),
        ((1,), pa.array([1.5])),
    ],
)
def test_a_key_that_has_no_order_with_the_bounds_is_refused(bounds: tuple[Any, ...], values: pa.Array) -> None:
    with raises(Refused, "config.table_rule"):
        shards_of(values, ranges(*bounds))


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": "range"},
        {"function": "range", "bounds": [1, 2]},
        {"function": "range", "bounds": [3, 2, 1]},
        {"function": "range", "bounds": [1, 1, 2]},
        {"function": "range", "bounds": [1, "2", 3]},
        {"bounds": [1, 2, 3]},
        {"function": "python"},
        {"function": "python", "python": "no reference"},
        {"function": "hash", "python": "a:b"},
    ],
)
def test_bounds_and_functions_that_make_no_shards_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sharding(key="id", tables=4, **wrong)


def by_last_digit(values: pa.Array, shards: int) -> Any:
    return [int(str(value)[-1]) % shards for value in values.to_pylist()]


def one_too_many(values: pa.Array, shards: int) -> Any:
    return [shards] * len(values)


def too_few(values: pa.Array, shards: int) -> Any:
    return [0]


def fractions(values: pa.Array, shards: int) -> Any:
    return [0.5] * len(values)


def failing(values: pa.Array, shards: int) -> Any:
    return 1 // 0


def wrapping(values: pa.Array, shards: int) -> Any:
    return [int(number) % shards for number in np.asarray(values) * 3]


def own(name: str) -> Sharding:
    return Sharding(key="id", function="python", python=f"{__name__}:{name}", tables=4)


def test_a_function_of_ones_own_decides() -> None:
    assert shards_of(pa.array([10, 17, 23]), own("by_last_digit")).tolist() == [0, 3, 3]
    assert shards_of(pa.array([], pa.int64()), own("by_last_digit")).tolist() == []


@pytest.mark.parametrize("unsigned", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()])
def test_a_function_sees_a_key_of_a_source_as_it_sees_that_of_a_run(unsigned: pa.DataType) -> None:
    """A run has no unsigned integers, and verification reads the source: a narrower type may wrap."""
    sharding = Sharding(key="id", function="python", python=f"{__name__}:wrapping", tables=1000)
    values = pa.array([2**unsigned.bit_width - 1, 1], unsigned)
    in_a_run = values.cast(merged_type(unsigned))
    assert shards_of(values, sharding).tolist() == shards_of(in_a_run, sharding).tolist()


@pytest.mark.parametrize("name", ["one_too_many", "too_few", "fractions", "failing", "nowhere", "HASH"])
def test_a_function_that_does_not_give_each_key_a_shard_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        shards_of(pa.array([1, 2]), own(name))
    assert (caught.value.code, name in caught.value.what) == ("config.function", True)


@pytest.mark.parametrize("sharding", [MOD, HASH, ranges(1), own("by_last_digit")])
def test_a_null_shard_key_is_refused(sharding: Sharding) -> None:
    with pytest.raises(Refused, match="null"):
        shards_of(pa.array([1, None]), sharding)


def _target(connections: int = 1, **rule: object) -> MysqlTarget:
    names = [f"env:T{number}" for number in range(connections)]
    return MysqlTarget.model_validate({"name": "x", "connections": names, "tables": {"*": rule}})


def test_shards_are_database_major() -> None:
    sharding = {"key": "id", "databases": 2, "tables": 2}
    target = _target(database="{database}_{d}", table="{table}_{t:02d}", sharding=sharding)
    found = [(table.shard, table.name, table.connection) for table in shard_tables(target, "shop.orders")]
    assert found == [
        (0, "shop_0.orders_00", 0),
        (1, "shop_0.orders_01", 0),
        (2, "shop_1.orders_00", 0),
        (3, "shop_1.orders_01", 0),
    ]


def test_each_database_may_have_a_server_of_its_own() -> None:
    sharding = {"key": "id", "databases": 2, "tables": 1}
    target = _target(2, database="db{d}", table="{table}", sharding=sharding)
    assert [table.connection for table in shard_tables(target, "shop.orders")] == [0, 1]


EXACT = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")


@pytest.mark.parametrize("function", ["hash", "range", "python"])
@pytest.mark.parametrize(
    ("kind", "apart"),
    [
        *(
            (f"varchar(9) {collation}", True)
            for collation in ("utf8mb4_0900_ai_ci", "utf8mb4_bin", "utf8mb4_uca1400_nopad_as_cs")
        ),
        ("char(36) ascii_general_ci", True), ("char(36) ascii_bin", False), ("enum('a','b') utf8mb4_0900_ai_ci", False),
        *((f"varchar(9) {collation}", False) for collation in EXACT), ("varbinary(9)", False),
    ],
)  # fmt: skip
def test_a_shard_key_that_joins_what_its_function_keeps_apart_is_refused(kind: str, apart: bool, function: str) -> None:
    """Before any server is asked. Outside of the row's key, another spelling moves the row as another value does."""
    declared, _, collation = kind.partition(" ")
    column = parse_column_type(declared, charset=collation.partition("_")[0], collation=collation)
    if function == "range" and column.base == "varbinary":
        return
    more = {
        "range": {"bounds": ["m"], "tables": 2},
        "python": {"python": f"{__name__}:by_last_digit"},
        "hash": {"tables": 2},
    }
    sharding = {"key": "k", "function": function, **more[function]}
    target = _target(database="db", table="{table}_{t}", sharding=sharding)
    for key in (1, None):
        columns = (Column("id", ColumnType("int"), False, 1 if key is None else None), Column("k", column, False, key))
        with pytest.raises(LockstepError) as caught:
            open_destination(target, "shop.t", [TableSchema("shop", "t", columns)])
        refused = apart and key is not None and function != "python"
        assert caught.value.code == ("config.table_rule" if refused else "config.unset")


def test_a_shard_key_whose_type_its_function_does_not_take_is_refused_before_a_row_has_it() -> None:
    target = _target(database="db", table="{table}_{t}", sharding={"key": "at", "function": "hash", "tables": 2})
    schema = TableSchema("shop", "t", (Column("at", ColumnType("datetime"), False, 1),))
    with raises(Refused, "config.table_rule", match="hash takes only integers"):
        open_destination(target, "shop.t", [schema])


def test_connections_that_fit_no_database_are_refused() -> None:
    with raises(UsageError, "config.invalid"):
        shard_tables(_target(3, database="db"), "shop.orders")


def test_a_logical_name_without_database_needs_one_in_the_template() -> None:
    with raises(UsageError, "config.invalid"):
        shard_tables(_target(), "orders")
    assert [table.name for table in shard_tables(_target(database="shop"), "orders")] == ["shop.orders"]


FORMER = Sharding.model_validate(
    {"key": "id", "databases": 2, "tables": 4, "former": {"shard": 3, "of": 4}},
)


@pytest.mark.parametrize("function", ["mod", "hash"])
def test_rows_of_a_former_shard_go_to_its_successors_alone(function: str) -> None:
    whole = Sharding(key="id", function=function, databases=2, tables=4)
    few = Sharding(key="id", function=function, databases=2, tables=2)
    keys = pa.array(range(-40, 40), pa.int64())
    for shard in range(4):
        mine = keys.filter(pa.array(shards_of(keys, few) == shard))
        own = whole.model_copy(update={"former": FORMER.former.model_copy(update={"shard": shard})})
        numbers = shards_of(mine, own)
        assert set(numbers) <= {0, 1}
        assert (numbers * 4 + shard).tolist() == shards_of(mine, whole).tolist()


def test_a_row_that_is_in_the_wrong_former_shard_is_named() -> None:
    assert shards_of(pa.array([3, 7, 11, -1]), FORMER).tolist() == [0, 1, 0, 1]
    with raises(DataAtRisk, "target.foreign_row") as caught:
        shards_of(pa.array([3, 6]), FORMER)
    assert caught.value.what == "The row with id = 6 belongs to shard 2 of 4, and was in shard 3."


def test_the_tables_of_a_former_shard_are_its_successors() -> None:
    rule = {"database": "d{d}", "table": "t{t}", "sharding": FORMER.model_dump()}
    target = MysqlTarget.model_validate({"name": "t", "connections": ["env:T"], "tables": {"o": rule}})
    found = [(table.shard, table.name, table.placement) for table in shard_tables(target, "o")]
    assert found == [(0, "d0.t3", "shard 3 of 8 by mod(id)"), (1, "d1.t3", "shard 7 of 8 by mod(id)")]
    whole = MysqlTarget.model_validate({
        "name": "t", "connections": ["env:T"], "tables": {"o": {**rule, "sharding": MOD.model_dump()}}
    })  # fmt: skip
    assert {(table.name, table.placement) for table in shard_tables(whole, "o")} >= {
        (name, said) for _, name, said in found
    }


@pytest.mark.parametrize("changed", [{"function": "range", "bounds": [1, 2, 3, 4, 5, 6, 7]}, {"tables": 3},
                                     {"former": {"shard": 4, "of": 4}}])  # fmt: skip
def test_a_former_shard_without_successors_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="former"):
        Sharding.model_validate(FORMER.model_dump() | changed)
