"""What Lockstep adds to a target: a version beside each row, tombstones of deleted keys, and the ledger.

    <table>._cdc_version         VARBINARY, invisible: SELECT * does not show it, INSERT need not name it
    <database>._lockstep_tombstone   one row per deleted key, so that a late insert cannot revive it
    <database>._lockstep_ledger      one row per run and table, written in the transaction of the rows

Preparing twice, or by two at once, is the same as once.
"""

from __future__ import annotations

import logging
from typing import Any

import pymysql

from cdc_core.apply.guard import VERSION_BYTES
from cdc_core.errors import Refused
from cdc_core.target.facts import DENIED, VERSION_COLUMN, TableFacts, denied, quote, table_facts

log = logging.getLogger(__name__)

TOMBSTONES = "_lockstep_tombstone"
LEDGER = "_lockstep_ledger"
KEY_BYTES = 512
"""Longest key text kept as it is; a longer one is kept as its SHA-256 (target.text)."""
_DUPLICATE_COLUMN = 1060

_CREATE_TOMBSTONES = f"""
CREATE TABLE IF NOT EXISTS {{database}}.{TOMBSTONES} (
  table_name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  row_key VARBINARY({KEY_BYTES}) NOT NULL,
  version VARBINARY({VERSION_BYTES}) NOT NULL,
  PRIMARY KEY (table_name, row_key)
) ENGINE=InnoDB COMMENT='Lockstep: versions of deleted keys'
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


def prepare(connection: pymysql.Connection[Any], facts: TableFacts) -> TableFacts:
    """Adds what is missing to the table and its database; the facts afterwards. Raises Refused (target.grant)."""
    try:
        with connection.cursor() as cursor:
            _create_missing(cursor, facts.database)
            if facts.versioned:
                return facts
            log.info("adding the invisible column %s to %s", VERSION_COLUMN, facts.name)
            cursor.execute(
                f"ALTER TABLE {quote(facts.database)}.{quote(facts.table)} "
                f"ADD COLUMN {VERSION_COLUMN} VARBINARY({VERSION_BYTES}) INVISIBLE"
            )
    except pymysql.err.MySQLError as error:
        if error.args[0] in DENIED:
            raise denied(error, where=facts.name) from None
        if error.args[0] != _DUPLICATE_COLUMN:
            raise Refused(
                f"The table cannot be prepared: {error.args[-1]}.",
                where=facts.name,
                code="target.prepare",
                remedy="see what the server says, or add the invisible column and the two tables by hand "
                "(docs/errors.md has the statements)",
            ) from None
    return table_facts(connection, facts.database, [facts.table])[facts.table]


def _create_missing(cursor: Any, database: str) -> None:
    cursor.execute(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s)",
        (database, TOMBSTONES, LEDGER),
    )
    there = {row[0] for row in cursor.fetchall()}
    for name, statement in ((TOMBSTONES, _CREATE_TOMBSTONES), (LEDGER, _CREATE_LEDGER)):
        if name not in there:
            cursor.execute(statement.format(database=quote(database)))
