"""Differences that an application notices when one table replaces another: a pure function of two definitions.

Some differences make the same statement write other values, without an error: these stop a cutover. People judge the
others, because they know what the application does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from cdc_core.model.collations import spell_out_utf8
from cdc_core.model.schema import INTEGER_BYTES, ColumnType
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.targets.tables.table_definition import LITERAL, ColumnDefinition, IndexDefinition, TableDefinition
from cdc_core.targets.tables.table_differences import Existing

MAKE = (
    "an application that needs it fails there, or writes other rows: alter the new tables before the switch (`lockstep "
    "ddl`; foreign keys and triggers by hand)"
)
_SORTED = "the same query finds, sorts and joins rows differently: give the columns the old collation, or test this"
_SEARCHED = "queries that use it read the whole table: add it (`lockstep ddl`) before the application is switched"
_NUMBERS = frozenset({"decimal", "double", "bit", "year"})
_TIMES = frozenset({"time", "datetime", "timestamp"})
_MOVE = "{}, without any error: ALTER TABLE ... MODIFY COLUMN ... {}, then begin again"


@dataclass(frozen=True, slots=True)
class Noticed:
    """what: the difference of the new table. stops: no cutover leads to it."""

    what: str
    remedy: str = MAKE
    stops: bool = False


def noticed(former: Existing, made: Existing) -> Iterator[Noticed]:
    """former: the table that the application leaves. made: a table that it moves to."""
    old, new = former.definition, made.definition
    yield from _order(old, new)
    for column in old.columns:
        there = new.by_name.get(column.name.lower())
        if there is not None:
            yield from _column(column, there)
            if column.default and not there.default:
                yield Noticed(f"{column.name} has no default")
            was, now = former.literals.get(column.name), made.literals.get(there.name)
            literal = column.default == there.default == LITERAL and was is not None and now is not None
            if literal and not _same_literal(str(was), str(now), column.type):
                yield Noticed(f"{column.name} has the default {now!r}, and had {was!r}")
    yield from _collations(old, new)
    yield from _keys(old, new)
    for what, mine, theirs in (
        ("CHECK constraints", old.checks, new.checks),
        ("foreign keys", old.foreign_keys, new.foreign_keys),
        ("triggers", of_people(old.triggers), of_people(new.triggers)),
    ):
        if len(mine) > len(theirs):
            yield Noticed(f"it has {len(theirs) or 'none'} of the {what} {', '.join(mine)}")


def _same_literal(one: str, other: str, kind: ColumnType) -> bool:
    """Whether two literal defaults, as column_defaults has them, are one value. kind: of the column."""
    if one == other:
        return True
    if kind.base == "float":  # an ALTER TABLE of any column may round it to the digits that the server shows
        return f"{float(one):.6g}" == f"{float(other):.6g}"
    if kind.base in INTEGER_BYTES or kind.base in _NUMBERS:
        try:
            return Decimal(one) == Decimal(other)
        except InvalidOperation:
            return False
    return kind.base in _TIMES and _without_zeros(one) == _without_zeros(other)


def _without_zeros(text: str) -> str:
    """Without a fraction of a second that says nothing: columns of unlike precision show unlike many digits."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def of_people(triggers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in triggers if not name.startswith("_lockstep_"))


def _order(old: TableDefinition, new: TableDefinition) -> Iterator[Noticed]:
    """The order of columns: `SELECT *` shows it, and so does an INSERT that names no columns."""
    here = [column.name.lower() for column in old.columns if not column.invisible and column.name != VERSION_COLUMN]
    there = [column.name.lower() for column in new.columns if not column.invisible]
    both = [name for name in here if name in there], [name for name in there if name in here]
    moved = next(((was, now) for was, now in zip(*both, strict=True) if was != now), None)
    if moved is not None:
        yield Noticed(
            f"its columns are in another order: {moved[1]} is where {moved[0]} was",
            _MOVE.format("an INSERT that names no columns would write its values to other columns", "AFTER ..."),
            stops=True,
        )
    if set(here) != set(there):
        others = ", ".join(sorted(set(here) ^ set(there)))
        yield Noticed(f"it shows other columns: {others}", "an INSERT that names no columns fails: name them")


def _column(column: ColumnDefinition, there: ColumnDefinition) -> Iterator[Noticed]:
    for lacks, what in (
        (column.counted and not there.counted, "AUTO_INCREMENT"),
        (column.refreshed and not there.refreshed, "set ON UPDATE"),
        (column.generated and not there.generated, "generated"),
    ):
        if lacks:
            yield Noticed(f"{column.name} is not {what}")
    was, now = column.type.labels, there.type.labels
    if any(label in now and now.index(label) != at for at, label in enumerate(was)):
        yield Noticed(
            f"{column.name} has its labels in another order",
            _MOVE.format("ORDER BY, and all else that uses their numbers, would differ", "with the old order"),
            stops=True,
        )
    if not set(was) <= set(now):
        yield Noticed(f"{column.name} lacks the labels {', '.join(sorted(set(was) - set(now)))}")


def _collations(old: TableDefinition, new: TableDefinition) -> Iterator[Noticed]:
    found: dict[tuple[str, str], list[str]] = {}
    for column in old.columns:
        there = new.by_name.get(column.name.lower())
        if there is not None and column.type.collation and _sorted_by(old, column) != _sorted_by(new, there):
            found.setdefault((_sorted_by(old, column), _sorted_by(new, there)), []).append(column.name)
    for (was, now), names in found.items():
        yield Noticed(f"the collation of {', '.join(names)} is {now or 'none'}, and was {was}", _SORTED)


def _sorted_by(table: TableDefinition, column: ColumnDefinition) -> str:
    """MariaDB's collations with names of MySQL's compare differently."""
    name = spell_out_utf8(column.type.collation)
    return f"{name} of MariaDB" if table.mariadb and "_0900_" in name else name


def _keys(old: TableDefinition, new: TableDefinition) -> Iterator[Noticed]:
    for index in old.indexes:
        if (index.unique or not index.hidden) and not any(_does_for(index, there) for there in new.indexes):
            kind, remedy = ("unique key", MAKE) if index.unique else ("index", _SEARCHED)
            yield Noticed(f"it has no {kind} like {index.name}", remedy)
    for index in new.indexes:
        if index.unique and not any(had.unique and set(_parts(had)) <= set(_parts(index)) for had in old.indexes):
            yield Noticed(
                f"it has the unique key {index.name}", "writes that the old table takes may fail: drop the key"
            )


def _does_for(index: IndexDefinition, there: IndexDefinition) -> bool:
    """Whether rows that the index keeps unique, or finds, are kept unique or found."""
    mine, theirs = _parts(index), _parts(there)
    if index.unique:
        return there.unique and set(theirs) <= set(mine)
    kinds = [side.kind if side.kind in ("FULLTEXT", "SPATIAL") else "" for side in (index, there)]
    return not there.hidden and kinds[0] == kinds[1] and theirs[: len(mine)] == mine


def _parts(index: IndexDefinition) -> tuple[tuple[str, int | None, str], ...]:
    return tuple((part.column.lower(), part.prefix, part.expression.text) for part in index.parts)
