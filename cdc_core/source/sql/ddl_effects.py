"""What a DDL statement does to captured tables: to their known definitions, and to rows that the log does not show.

Which tables a statement that is not DDL may change is in `statement_reach`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cdc_core.model.coverage import ANY_TABLE, EACH_TABLE, Happened
from cdc_core.model.schema import TableSchema
from cdc_core.source.schemas.known_definitions import LogPoint
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.modified_columns import keeps_values
from cdc_core.source.sql.statement_classes import Statement

_SOME_TABLE = "lockstep_some_table"
"""A name that no pattern mentions: it is captured if all tables of a database are."""
_DROPS = ("DROP TABLE", "DROP DATABASE")


@dataclass(frozen=True, slots=True)
class DdlEffect:
    """tables: captured ones that the statement defines; None where any may be.

    unlogged:  why rows changed or vanished without row events; "" where they did not.
    truncated: the definition of the table whose rows it removes, where that is staged as a change: then it is not an
               unlogged one, and nothing has `happened`.
    happened:  for the coverage of tables.
    unnamed:   the database that it drops, if Lockstep knows no captured table in it, although there may have been some.
    """

    tables: tuple[str, ...] | None
    unlogged: str = ""
    truncated: TableSchema | None = None
    happened: tuple[tuple[str, Happened], ...] = ()
    unnamed: str = ""

    @property
    def names(self) -> str:
        return "unknown tables" if self.tables is None else ", ".join(self.tables)


def define_tables(
    statement: Statement,
    tables: TableRegistry,
    point: LogPoint,
    commit_ts_us: int,
    *,
    stops_at_cascades: bool,
    on_truncate: Literal["unlogged", "stage"],
) -> DdlEffect:
    """Makes `tables` forget what the statement redefines, and returns what it did to rows. point: of the statement."""
    tables.meet(statement, point)
    defined = tables.of_database(statement.database) if statement.database else statement.tables
    if defined is not None:
        defined = tuple(fromkey for fromkey in dict.fromkeys(defined) if fromkey not in statement.passed)
    if statement.modified and _keeps_values(statement, tables, point):
        statement = replace(statement, unlogged="")
    change = tables.change(statement, defined or (), point, commit_ts_us)
    lived = tables.lived(statement, point)
    cascades = statement.cascades and stops_at_cascades
    # Before the definition is forgotten: the rows that it removes have the old one.
    truncated = None if cascades or on_truncate != "stage" else _truncated(statement, tables, lived=lived)
    tables.redefined(defined, point, change)
    captured = None if defined is None else tuple(f"{d}.{t}" for d, t in defined if tables.captures(d, t))
    if statement.database and not captured and not tables.may_be_in(statement.database):
        return DdlEffect(())
    if statement.database and (statement.unlogged or not captured):
        # The log does not say which tables the database had, and the server no longer knows.
        each = statement.database + EACH_TABLE
        if statement.unlogged and tables.captures(statement.database, _SOME_TABLE):
            captured = (each,)
        elif not captured:
            what = Happened.UNLOGGED if statement.unlogged else Happened.DROPPED
            return DdlEffect((), happened=((each, what),), unnamed=statement.database)
    if captured == () or truncated is not None:
        return DdlEffect(captured, truncated=truncated)
    emptied = [column for columns in change.emptied.values() for column in columns]
    unlogged = statement.unlogged or ("which tables it touches is unknown" if captured is None else "")
    if not unlogged and cascades:
        unlogged = "from here on its foreign key changes rows that this server does not log"
    if not unlogged and lived:
        unlogged = "the rows of an earlier table of that name are still staged and in the targets"
    # Before `emptied` is judged: coverage is about rows, and a column that is added again makes no row go unseen.
    happened = _happened(statement, unlogged)
    names = (ANY_TABLE,) if captured is None else captured
    if not unlogged and emptied:
        unlogged = f"{', '.join(emptied)} existed before: rows that do not change from here on lose its old values"
    told = [] if happened is None else [(name, happened) for name in names]
    if happened is Happened.UNLOGGED:
        vacated = (f"{database}.{table}" for database, table in statement.vacates)
        told += [(name, Happened.DROPPED) for name in vacated if name in names]
    return DdlEffect(captured, unlogged, happened=tuple(told))


def _keeps_values(statement: Statement, tables: TableRegistry, point: LogPoint) -> bool:
    """Whether the definition that the table had before shows that an ALTER TABLE changed none of its values."""
    before = None if not statement.tables else tables.before(statement.tables[0], point)
    columns = {} if before is None else {column.name.lower(): column for column in before.columns}
    return all(
        column.name.lower() in columns and keeps_values(columns[column.name.lower()], column, strict=statement.strict)
        for column in statement.modified
    )


def drops(statement: Statement) -> bool:
    """Whether it removes tables, whose rows stay in the targets."""
    return statement.verb in _DROPS


def _truncated(statement: Statement, tables: TableRegistry, *, lived: bool) -> TableSchema | None:
    """The definition of the captured table that it empties, or creates again empty."""
    empties = statement.verb in ("TRUNCATE", "CREATE OR REPLACE TABLE") or lived
    if not empties or statement.tables is None or statement.queries:
        return None
    (name,) = statement.tables
    return tables.definition(name) if tables.captures(*name) else None


def _happened(statement: Statement, unlogged: str) -> Happened | None:
    """What a DDL statement did to the rows of the tables that it names."""
    if unlogged:
        return Happened.UNLOGGED
    if statement.verb == "CREATE TABLE":
        return Happened.CREATED_IF_ABSENT if statement.guarded else Happened.CREATED
    return Happened.DROPPED if drops(statement) else None
