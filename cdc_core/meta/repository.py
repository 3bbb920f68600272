"""A repository reads and writes a few tables. Over a database each of its methods is one transaction; over a connection
it is a part of that connection's transaction, so that one method can use several repositories.

Methods without a decorator are parts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, CursorResult, Executable, Row, Table, delete, func, select

from cdc_core.meta.database import Database, now_us
from cdc_core.meta.scope import pipeline_of

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")

IN_LIST = 500
"""Values in one IN list: far below every database's limit."""


class Repository:
    """The rows of one pipeline (scope.py)."""

    def __init__(self, at: Database | Connection) -> None:
        self._at = at

    @property
    def connection(self) -> Connection:
        """That of the transaction, of which this is a part."""
        assert isinstance(self._at, Connection), "this method is part of a transaction"
        return self._at

    @property
    def _database(self) -> Database:
        assert isinstance(self._at, Database), "this method is a transaction of its own"
        return self._at

    @property
    def pipeline(self) -> str:
        """The pipeline that the transaction is for."""
        return pipeline_of(self.connection)

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[*tuple[Any, ...]]:
        return self.connection.execute(statement, values)

    def now_us(self) -> int:
        """The database's clock, µs UTC."""
        return now_us(self.connection)

    def delete(self, table: Table, chosen: ColumnElement[bool], below: tuple[Table, ...], *, dry_run: bool) -> int:
        """Deletes rows of a table, after those of tables that refer to its key; how many of its own. dry_run: counts
        them."""
        if dry_run:
            return int(self.execute(select(func.count()).select_from(table).where(chosen)).scalar_one())
        _, key = table.primary_key
        for child in below:
            self.execute(delete(child).where(child.c[key.name].in_(select(key).where(chosen))))
        return self.execute(delete(table).where(chosen)).rowcount

    def within(self, connection: Connection) -> Self:
        """The same repository as a part of a transaction."""
        return type(self)(connection)


def reads(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """A method that sees one consistent snapshot."""
    return _transaction(method, write=False)


def writes(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """A method that happens as a whole or not at all, and runs again from its start if it collides with another."""
    return _transaction(method, write=True)


def _transaction(method: Callable[Concatenate[R, P], T], *, write: bool) -> Callable[Concatenate[R, P], T]:
    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(self._at, Connection):
            return method(self, *args, **kwargs)
        begin = self._at.write if write else self._at.read
        return begin(lambda connection: method(self.within(connection), *args, **kwargs))

    return call


def value_of(kind: type[T], row: Row[Any], **others: Any) -> T:
    """A row as a dataclass: each field has the column of its name, or what `others` says."""
    chosen: Any = kind
    return kind(
        **{name: others[name] if name in others else getattr(row, name) for name in chosen.__dataclass_fields__}
    )


def slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Slices of at most IN_LIST values."""
    for start in range(0, len(values), IN_LIST):
        yield values[start : start + IN_LIST]
