"""Which shard a row belongs to, what the shard's table is called, and which server serves it.

Shards are numbered 0 .. databases * tables - 1, database-major: shard s is table `s % tables` of database
`s // tables`. The function of the shard key is one of

    mod    integers: key modulo the number of shards, always 0 or more (-1 of 8 shards is 7, as in Python;
           SQL's MOD(-1, 8) is -1). Anything but an integer is refused.
    hash   CRC32 of the key's text modulo the number of shards: `CRC32(key) % n` in SQL for integers, for text in
           UTF-8, for binary strings and for decimals as the target prints them, with all fractional digits of its type.
    range  the number of bounds that the key is not below: integers, text in the order of its UTF-8 bytes, dates, times.
    python a user's function; each shard that it gives is checked to exist.

With `former`, the table has the rows of one shard of a former layout alone. Where mod and hash count to a multiple of
the former number, the rows of former shard s are in shards s, s + of, s + 2 of, ...: its successors, which are counted
from 0 then. A row that belongs elsewhere is refused.

A change of this arithmetic would send rows to shards other than those that hold them: the tests pin values.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import EntryPoint
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.config import ONE_TABLE, MysqlTable, MysqlTarget, Sharding
from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.merged_columns import merged_type

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One physical table. `connection` indexes the target's connections. number: of the shard in the whole layout.
    placement: which rows the table is for."""

    shard: int
    database: str
    table: str
    connection: int
    number: int = 0
    placement: str = ONE_TABLE

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


PlacedTable = tuple[str, ShardTable]
"""A logical table, and one of its physical tables."""


def placed_tables(target: MysqlTarget, logicals: Iterable[str]) -> list[PlacedTable]:
    """Raises as shard_tables."""
    return [(logical, place) for logical in logicals for place in shard_tables(target, logical)]


def by_server(target: MysqlTarget, tables: Iterable[PlacedTable]) -> Iterator[tuple[str, list[PlacedTable]]]:
    """The tables of each server that has some, with the server as the pipeline file names it."""
    listed = list(tables)
    for number, reference in enumerate(target.connections):
        mine = [(logical, place) for logical, place in listed if place.connection == number]
        if mine:
            yield reference, mine


def shard_count(sharding: Sharding | None) -> int:
    if sharding is None:
        return 1
    return sharding.whole_count if sharding.former is None else sharding.whole_count // sharding.former.of


def shards_of(values: pa.Array, sharding: Sharding, scale: int | None = None) -> npt.NDArray[np.int64]:
    """The shard of each value of a column. scale: fractional digits of a DECIMAL column at the target; None: those of
    the values. Raises Refused for nulls and for types that the function does not take, and DataAtRisk
    (target.foreign_row)."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.null_count:
        raise _refused(sharding, "is null in a row")
    shards = _in_whole_layout(values, sharding, scale)
    former = sharding.former
    if former is None:
        return shards
    elsewhere = np.flatnonzero(shards % former.of != former.shard)
    if len(elsewhere):
        first = elsewhere[0]
        raise DataAtRisk(
            f"The row with {sharding.key} = {values[first]} belongs to shard {shards[first] % former.of} of "
            f"{former.of}, and was in shard {former.shard}.",
            where=f"sharding of {sharding.key}",
            code="target.foreign_row",
            remedy="nothing of it was written. Find out who put the row there: move it to its own shard, or delete it, "
            "then copy the table again (`lockstep snapshot`)",
        )
    return (shards - former.shard) // former.of


def _in_whole_layout(values: pa.Array, sharding: Sharding, scale: int | None) -> npt.NDArray[np.int64]:
    count = sharding.whole_count
    kind = values.type
    integer = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    if sharding.function == "mod":
        if not integer:
            raise _refused(sharding, f"is {kind}, but mod takes integers only")
        if pa.types.is_uint64(kind):
            return np.asarray(values.to_numpy(zero_copy_only=False) % np.uint64(count)).astype(np.int64)
        if pa.types.is_decimal(kind):  # bigint unsigned, as Spark reads it
            return np.array([int(value) % count for value in values.to_pylist()], dtype=np.int64)
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.int64) % count
    if sharding.function == "range":
        return _by_bounds(values, sharding)
    if sharding.function == "python":
        return _by_function(values, sharding, count)
    if not (integer or _is_text(kind) or _is_binary(kind) or pa.types.is_decimal(kind)):
        raise _refused(sharding, f"is {kind}, but hash takes only integers, decimals, text and binary strings")
    raw = values if _is_binary(kind) else _server_text(values, scale)
    sums = (zlib.crc32(item.encode() if isinstance(item, str) else item) % count for item in raw.to_pylist())
    return np.fromiter(sums, dtype=np.int64, count=len(raw))


def _server_text(values: pa.Array, scale: int | None) -> pa.StringArray:
    if scale is None and pa.types.is_decimal(values.type):
        scale = values.type.scale
    if not scale:
        return values.cast(pa.string())
    # Sources may have fewer digits than the target, and Arrow writes small numbers with an exponent.
    return pa.array([f"{Decimal(value):.{scale}f}" for value in values.to_pylist()], pa.string())


def _by_bounds(values: pa.Array, sharding: Sharding) -> npt.NDArray[np.int64]:
    kind, numbers = values.type, not isinstance(sharding.bounds[0], str)
    if numbers and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        # One type for both, in which every key and bound is exact.
        wide = pa.decimal256(76, kind.scale if pa.types.is_decimal(kind) else 0)
        bounds, values = pa.array([Decimal(bound) for bound in sharding.bounds], wide), values.cast(wide)
    elif not numbers and _is_text(kind):
        values, bounds = values.cast(pa.binary()), pa.array(sharding.bounds).cast(pa.binary())
    elif not numbers and pa.types.is_temporal(kind):
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp(kind.unit))
        try:
            bounds = pa.array(sharding.bounds).cast(values.type)
        except pa.ArrowInvalid as error:
            raise _refused(sharding, f"is {kind}, but a bound is not: {error}") from None
    else:
        raise _refused(sharding, f"is {kind}, but the bounds are {'integers' if numbers else 'texts'}")
    shards = np.zeros(len(values), dtype=np.int64)
    for bound in bounds:
        shards += np.asarray(pc.greater_equal(values, bound)).astype(np.int64)
    return shards


def shard_function(sharding: Sharding) -> Callable[[pa.Array, int], Any]:
    """The function that `python` names. Raises Refused (config.function) when it cannot be loaded."""
    reference = sharding.python or ""
    try:
        function = EntryPoint(reference, reference, "lockstep.shard").load()
    except (ImportError, AttributeError) as error:
        raise _bad_function(sharding, f"cannot be loaded: {error}") from None
    if not callable(function):
        raise _bad_function(sharding, "is not a function")
    return cast("Callable[[pa.Array, int], Any]", function)


def _by_function(values: pa.Array, sharding: Sharding, count: int) -> npt.NDArray[np.int64]:
    work = shard_function(sharding)
    # Runs have merged types, verification others: a function may not give the same shard for both.
    values = values.cast(merged_type(values.type))
    try:
        shards = np.asarray(work(values, count))
    except Exception as error:  # the user's code may raise anything
        log.debug("the sharding function", exc_info=True)  # its message may quote a value
        raise _bad_function(sharding, f"raised {type(error).__name__} (-vv shows the message)") from None
    if shards.shape != (len(values),) or not (np.issubdtype(shards.dtype, np.integer) or not len(values)):
        raise _bad_function(sharding, f"returned {shards.dtype} of shape {shards.shape} for {len(values)} keys")
    if len(shards) and not 0 <= shards.min() <= shards.max() < count:
        raise _bad_function(sharding, f"returned shards {shards.min()} to {shards.max()} of {count}")
    return shards.astype(np.int64)


def _bad_function(sharding: Sharding, why: str) -> Refused:
    return Refused(
        f"The shard function {sharding.python} {why}.",
        where=f"sharding of {sharding.key}",
        code="config.function",
        remedy="install it next to Lockstep, also where Spark's workers run; it takes an Arrow array of keys and the "
        "number of shards, and returns an integer from 0 to that number minus one for each key",
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _refused(sharding: Sharding, why: str) -> Refused:
    return Refused(
        f"The shard key {sharding.key!r} {why}.",
        code="config.table_rule",
        remedy="set sharding.key to a column that is never null; if it is not an integer, use function: hash",
    )


def shard_tables(target: MysqlTarget, logical: str) -> tuple[ShardTable, ...]:
    """All physical tables of a logical table, in shard order.

    Raises UsageError (config.invalid) if names or servers do not match the shards.
    """
    rule = target.table(logical)
    if rule is None:
        raise UsageError(
            f"Target {target.name!r} has no rule for the table {logical!r}.",
            where=f"targets.{target.name}.tables",
            code="config.invalid",
            remedy=f"add a rule for {logical!r}, or one for '*'",
        )
    sharding = rule.sharding
    databases = sharding.databases if sharding else 1
    if len(target.connections) not in (1, databases):
        raise UsageError(
            f"Target {target.name!r} has {len(target.connections)} connections for {databases} database(s) of "
            f"{logical!r}.",
            where=f"targets.{target.name}.connections",
            code="config.invalid",
            remedy="give one connection for all databases, or one for each database number in order",
        )
    tables = tuple(_named(target, logical, rule))
    names = {(table.connection, table.name) for table in tables}
    if len(names) < len(tables):
        raise UsageError(
            f"{len(tables)} shards of {logical!r} have only {len(names)} different table names.",
            where=f"targets.{target.name}.tables",
            code="config.invalid",
            remedy="use {d} in `database` and {t} in `table`, so that each shard has a table of its own",
        )
    return tables


def require_apart(target: MysqlTarget, logicals: Iterable[str]) -> None:
    """Raises Refused (config.table_rule) where two of the logical tables would be one table, and what shard_tables
    raises."""
    seen: dict[tuple[int, str], str] = {}
    for logical in logicals:
        for place in shard_tables(target, logical):
            other = seen.setdefault((place.connection, place.name), logical)
            if other != logical:
                raise Refused(
                    f"{other!r} and {logical!r} would both be the table {place.name} of the target.",
                    where=f"targets.{target.name}.tables",
                    code="config.table_rule",
                    remedy="give them different names in `database` and `table` of their rules; or, if they belong "
                    "together, one logical name with `routes`",
                )


def _named(target: MysqlTarget, logical: str, rule: MysqlTable) -> Iterator[ShardTable]:
    tables, former = (rule.sharding.tables, rule.sharding.former) if rule.sharding else (1, None)
    first, dot, rest = logical.partition(".")
    for shard in range(shard_count(rule.sharding)):
        number = shard if former is None else shard * former.of + former.shard
        d, t = divmod(number, tables)
        words: dict[str, object] = {"logical": logical, "table": rest if dot else logical, "d": d, "t": t}
        if dot:
            words["database"] = first
        try:
            database, table = rule.database.format(**words), rule.table.format(**words)
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"The name template {rule.database!r} / {rule.table!r} of {logical!r} cannot be filled: {error}.",
                where=f"targets.{target.name}.tables",
                code="config.invalid",
                remedy="use {logical}, {table}, {d} and {t}; {database} exists only where the logical name is "
                "'database.table'",
            ) from None
        placement = rule.sharding.placement(number) if rule.sharding else ONE_TABLE
        yield ShardTable(shard, database, table, d if len(target.connections) > 1 else 0, number, placement)
