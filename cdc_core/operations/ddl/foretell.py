"""What statements make of a table's definition, and how the server executes them: tried on an empty copy beside it.

Nobody knows better than the server itself which ALGORITHM a change takes, and what SHOW CREATE TABLE says afterwards.
The copy has a name of its own, the same at every try, so that what a killed one left is dropped by the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.errors import Refused
from cdc_core.mysql.connections import quote
from cdc_core.mysql.server_errors import number_of
from cdc_core.operations.ddl.fingerprint import DefinitionFingerprint, fingerprint
from cdc_core.operations.ddl.script import ScriptStatement
from cdc_core.targets.reading.sharding import ShardTable
from cdc_core.targets.reading.target_faults import denied, reason, translated

WAYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("instant", ("ALGORITHM=INSTANT",)),
    ("inplace", ("ALGORITHM=INPLACE", "LOCK=NONE")),
)
"""From the cheapest on: neither keeps anybody from writing for longer than it takes to exchange the definition."""
COPY = "copy"
"""The way of a statement that the server would execute by a copy, which a user's command makes instead."""
NOT_THIS_WAY = frozenset({1845, 1846, 1847, 4092})
"""The server would need another ALGORITHM or LOCK. 4092: no further version of the rows fits (MySQL's INSTANT)."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """prints: digests of the definition before the first statement and after each. ways: of each statement, the name of
    one of WAYS, or COPY."""

    prints: tuple[str, ...]
    ways: tuple[str, ...]

    def place(self, definition: DefinitionFingerprint) -> int | None:
        """How many statements a table with this definition has behind it; None for one that is none of these."""
        return self.prints.index(definition.digest) if definition.digest in self.prints else None


def foretell(
    connection: pymysql.Connection[Any],
    shard: ShardTable,
    statements: Sequence[ScriptStatement],
    *,
    lacking: Sequence[ScriptStatement] = (),
    copies: bool = False,
) -> Foretold:
    """lacking: what the table lacks of the definition that the statements begin with. copies: a statement that copies
    the table is accepted, if it is the only one.

    Raises Refused (target.table, ddl.copies, ddl.refused), and target_faults' errors."""
    before = fingerprint(connection, shard.database, shard.table)
    if before is None:
        raise no_table(shard)
    foreign_keys = before.without_foreign_keys != before
    trial = "_lockstep_ddl_" + hashlib.sha256(shard.name.encode()).hexdigest()[:16]
    place = quote(shard.database, trial)
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"DROP TABLE IF EXISTS {place}")
            cursor.execute(f"CREATE TABLE {place} LIKE {quote(shard.database, shard.table)}")
        except pymysql.err.MySQLError as error:
            raise _trial_refused(error, shard) from None
        try:
            copied = fingerprint(connection, shard.database, trial)
            if foreign_keys or copied != before:
                raise Refused(
                    f"The result for {shard.name} cannot be foretold: an empty copy of it is defined differently.",
                    where=shard.name,
                    code="ddl.copies",
                    remedy="alter tables with foreign keys or a DATA DIRECTORY by hand",
                )
            for statement in lacking:
                _tried(connection, shard, trial, statement, copies=True)
            begun = fingerprint(connection, shard.database, trial) if lacking else before
            assert begun is not None  # nobody else drops the copy
            prints, ways = [begun.digest], []
            for statement in statements:
                ways.append(_tried(connection, shard, trial, statement, copies=copies and len(statements) == 1))
                after = fingerprint(connection, shard.database, trial)
                if after is None or after.digest in prints:
                    raise Refused(
                        f"The statement leaves {shard.name} as it was, or as it was earlier in the file.",
                        where=f"line {statement.line}",
                        code="ddl.refused",
                        remedy="leave the statement out, or split the file: each step must be visible in the "
                        "definition",
                    )
                prints.append(after.digest)
            return Foretold(tuple(prints), tuple(ways))
        finally:
            cursor.execute(f"DROP TABLE IF EXISTS {place}")


def _tried(
    connection: pymysql.Connection[Any], shard: ShardTable, trial: str, statement: ScriptStatement, *, copies: bool
) -> str:
    """The first of the ways that the server takes."""
    for way, modifiers in (*WAYS, (COPY, ("ALGORITHM=COPY",))) if copies else WAYS:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement.on(shard.database, trial, *modifiers))
        except pymysql.err.MySQLError as error:
            if number_of(error) not in NOT_THIS_WAY:
                raise refused(error, shard, statement) from None
            said = reason(error)
            continue
        return way
    raise Refused(
        f"The server would copy {shard.name}, or block writes to it: {said}.",
        where=f"line {statement.line}",
        code="ddl.copies",
        remedy="split the statement so that it changes only the definition; or put it into a file of its own, and "
        "let gh-ost or pt-online-schema-change make the copies (--copy-with)",
    )


def refused(error: pymysql.err.MySQLError, shard: ShardTable, statement: ScriptStatement) -> Refused:
    return Refused(
        f"The server refuses the statement for {shard.name}: {reason(error)}.",
        where=f"line {statement.line}",
        code="ddl.refused",
        remedy="correct the statement, or the rows that the message names; this shard is unchanged",
    )


def no_table(shard: ShardTable) -> Refused:
    return Refused(
        f"{shard.name} does not exist.",
        where=shard.name,
        code="target.table",
        remedy="correct the table's name if the file misspells it; `lockstep target create` makes the tables of all "
        "shards",
    )


def _trial_refused(error: pymysql.err.MySQLError, shard: ShardTable) -> Exception:
    if denied(error):
        return Refused(
            f"The account may not make and drop an empty copy of {shard.name}: {reason(error)}.",
            where=shard.name,
            code="connection.grant",
            remedy=f"GRANT CREATE, INSERT, ALTER, DROP, SELECT ON {quote(shard.database)}.* TO the account",
        )
    return translated(error, where=shard.name)
