"""What Lockstep adds to a target: a version beside each row, tombstones of deleted keys, and the ledger.

    <table>._cdc_version         VARBINARY, invisible: SELECT * does not show it, INSERT need not name it
    <database>._lockstep_version     instead of it, for tables with guard.store: table: one row per row of theirs
    <database>._lockstep_tombstone   one row per deleted key, so that a late insert cannot revive it; and one for all
                                     the keys of a table that was truncated
    <database>._lockstep_mark        instead of both, for tables without a key: up to which batch of each source they
                                     have the changes
    <database>._lockstep_ledger      one row per run and table, written in the transaction of the rows

Preparing twice, or by two at once, is the same as once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pymysql

from cdc_core.apply.guard import VERSION_BYTES
from cdc_core.connections import sensible
from cdc_core.errors import Refused, RetryLater
from cdc_core.target.facts import (
    DENIED,
    UNAVAILABLE,
    VERSION_COLUMN,
    TableFacts,
    denied,
    quote,
    table_facts,
    unavailable,
)

log = logging.getLogger(__name__)

TOMBSTONES = "_lockstep_tombstone"
ALL_KEYS = "X'FF'"
"""The row_key of a table's last truncate: no text of a key is that."""
LEDGER = "_lockstep_ledger"
VERSIONS = "_lockstep_version"
MARKS = "_lockstep_mark"
KEY_BYTES = 512
"""Longest key text kept as it is; a longer one is kept as its SHA-256 (target.text)."""
_DUPLICATE_COLUMN, _LOCK_WAIT = 1060, 1205

_CREATE_VERSIONS = f"""
CREATE TABLE IF NOT EXISTS {{database}}.{{table}} (
  table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  row_key VARBINARY({KEY_BYTES}) NOT NULL,
  version VARBINARY({VERSION_BYTES}) NOT NULL,
  PRIMARY KEY (table_name, row_key)
) ENGINE=InnoDB COMMENT='Lockstep: {{comment}}'
"""
_CREATE_LEDGER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.{LEDGER} (
  run_id VARCHAR(250) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  logical VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  written BIGINT NOT NULL,
  stale BIGINT NOT NULL,
  absent BIGINT NOT NULL,
  at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (run_id, table_name)
) ENGINE=InnoDB COMMENT='Lockstep: what each run wrote'
"""

_CREATE_MARKS = f"""
CREATE TABLE IF NOT EXISTS {{database}}.{MARKS} (
  table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source VARBINARY(48) NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (table_name, source)
) ENGINE=InnoDB COMMENT='Lockstep: the last batch that is in tables without a key, by where it begins'
"""


@sensible("target")
def prepare(connection: pymysql.Connection[Any], facts: TableFacts) -> TableFacts:
    """Adds what is missing to the table and its database; the facts afterwards.

    Raises Refused (target.grant, target.prepare, target.guard_store), RetryLater (target.busy, target.unavailable).
    """
    try:
        with connection.cursor() as cursor:
            there = _ours(cursor, facts)
            _require_store(cursor, facts, there)
            _create_missing(cursor, facts, there)
            if facts.versioned or facts.beside or facts.keyless:
                return facts
            log.info("adding the invisible column %s to %s", VERSION_COLUMN, facts.name)
            cursor.execute(
                f"ALTER TABLE {quote(facts.database)}.{quote(facts.table)} "
                f"ADD COLUMN {VERSION_COLUMN} VARBINARY({VERSION_BYTES}) INVISIBLE"
            )
    except pymysql.err.MySQLError as error:
        if error.args[0] in DENIED:
            raise denied(error, where=facts.name) from None
        if error.args[0] in UNAVAILABLE:
            raise unavailable(error, where=facts.name) from None
        if error.args[0] == _LOCK_WAIT:
            raise RetryLater(
                f"The table is in use by a long transaction, and cannot be altered now: {error.args[-1]}.",
                where=facts.name,
                code="target.busy",
                remedy="run the task again; if it stays so, look for long transactions on the target",
            ) from None
        if error.args[0] != _DUPLICATE_COLUMN:
            raise Refused(
                f"The table cannot be prepared: {error.args[-1]}.",
                where=facts.name,
                code="target.prepare",
                remedy="see what the server says, or add the invisible column and the two tables by hand "
                "(docs/errors.md has the statements)",
            ) from None
    return replace(table_facts(connection, facts.database, [facts.table])[facts.table], beside=facts.beside)


@sensible("target")
def require_store(connection: pymysql.Connection[Any], facts: TableFacts) -> None:
    """Raises Refused (target.guard_store) when versions of the rows are kept where `guard.store` does not look."""
    with connection.cursor() as cursor:
        _require_store(cursor, facts, _ours(cursor, facts))


def _ours(cursor: Any, facts: TableFacts) -> set[str]:
    """The tables of Lockstep that are there."""
    cursor.execute(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s, %s, %s)",
        (facts.database, TOMBSTONES, LEDGER, VERSIONS, MARKS),
    )
    return {row[0] for row in cursor.fetchall()}


def _create_missing(cursor: Any, facts: TableFacts, there: set[str]) -> None:
    wanted = {} if facts.keyless else {TOMBSTONES: "versions of deleted keys"}
    if facts.beside:
        wanted[VERSIONS] = "versions of rows in tables that have no column for them"
    database = quote(facts.database)
    for name, comment in wanted.items():
        if name not in there:
            cursor.execute(_CREATE_VERSIONS.format(database=database, table=name, comment=comment))
    if facts.keyless and MARKS not in there:
        cursor.execute(_CREATE_MARKS.format(database=database))
    if LEDGER not in there:
        cursor.execute(_CREATE_LEDGER.format(database=database))


def _require_store(cursor: Any, facts: TableFacts, there: set[str]) -> None:
    if facts.keyless:
        return
    if facts.beside and facts.versioned:
        raise _moved(facts, VERSION_COLUMN, "row", f"the column {VERSION_COLUMN}")
    if not facts.beside and VERSIONS in there:
        cursor.execute(
            f"SELECT 1 FROM {quote(facts.database)}.{VERSIONS} WHERE table_name = %s LIMIT 1", (facts.table,)
        )
        if cursor.fetchone():
            raise _moved(facts, VERSIONS, "table", f"its rows of {VERSIONS}")


def _moved(facts: TableFacts, kept: str, store: str, away: str) -> Refused:
    return Refused(
        f"The versions of the rows of {facts.name} are kept in {kept}; guard.store says otherwise.",
        where=facts.name,
        code="target.guard_store",
        remedy=f"set guard.store: {store}; or empty the table, take its versions away ({away}) and replay it",
    )
