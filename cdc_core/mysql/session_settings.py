"""The settings of each session at a source or a target: its reads and writes do not depend on the server's own.

May assume a connection that has just logged in, and nothing else: `init_connect` may have set anything. Must guarantee
that each order, comparison, limit and value in the answers to our statements follows these settings, that none of them
needs a privilege, and that all of them were read back: a proxy may drop a SET.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import SERVER_STATUS

from cdc_core.errors import Refused

_NOT_SETTABLE = frozenset({1193, 1227, 1229, 1238})
"""No such variable, no privilege, global only, read only."""
_MYSQL, _MARIADB = "!80003", "M!100600"


@dataclass(frozen=True, slots=True)
class Setting:
    """value: as the server shows it. on: the servers that have the variable, as an executable comment names them. sql:
    what it is set to, where that is not its value. allowed: set only where the server lets the account."""

    name: str
    value: int | str
    on: str = ""
    sql: str = ""
    allowed: bool = False

    @property
    def assigned(self) -> str:
        return f"{self.name} = {self.sql or repr(self.value)}"

    @property
    def shown(self) -> str:
        return f"{'' if self.name.startswith('@') else '@@'}{self.name} AS `{self.name}`"

    def within(self, sql: str) -> str:
        return f"/*{self.on} {sql} */" if self.on else sql

    def is_kept(self, shown: Any) -> bool:
        if isinstance(self.value, int):
            return int(shown) == self.value
        text = shown.decode() if isinstance(shown, bytes) else str(shown)  # bytes: character_set_results = binary
        return set(text.split(",")) == set(self.value.split(","))


Settings = tuple[Setting, ...]

_EVERY = (
    # Orders. Of a longer text so many bytes are sorted by, and rows that begin alike have no order. An index tells keys
    # apart by 3,072 bytes at most, which weigh up to 36 times as much. The buffer must have room for 15 rows, or the
    # server refuses to sort.
    Setting("max_sort_length", 128 << 10),
    Setting("sort_buffer_size", 16 << 20),
    # Comparisons. With it, `id IS NULL` finds the row inserted last.
    Setting("sql_auto_is_null", 0),
    # Between two literals.
    Setting("collation_connection", "utf8mb4_bin"),
    # Limits that cut a result short,
    Setting("sql_select_limit", (1 << 64) - 1),
    Setting("group_concat_max_len", 1 << 30),
    # or refuse a statement: with it, max_join_size does not count.
    Setting("sql_big_selects", 1),
    Setting("sql_safe_updates", 0),
    # or end it while its answer is being read, because it takes long, or because the session was idle before it.
    Setting("net_write_timeout", 3600),
    Setting("max_execution_time", 0, _MYSQL),
    Setting("max_statement_time", 0, _MARIADB),
    Setting("wait_timeout", 28_800),
    Setting("idle_transaction_timeout", 0, _MARIADB),
    Setting("idle_readonly_transaction_timeout", 0, _MARIADB),
    Setting("idle_write_transaction_timeout", 0, _MARIADB),
    # Values. TIMESTAMP is read and written in UTC;
    Setting("time_zone", "+00:00"),
    # virtual columns are computed in the session that reads them, others in the one that writes;
    Setting("div_precision_increment", 4),
    Setting("default_week_format", 0),
    Setting("lc_time_names", "en_US"),
    # rows are those of now, and the server's own, not those of an analytics engine that lags.
    Setting("system_versioning_asof", "DEFAULT", _MARIADB, sql="DEFAULT"),
    Setting("use_secondary_engine", "OFF", "!80013"),
    # Transactions. COMMIT must not end the session (RELEASE), nor begin another transaction (CHAIN).
    Setting("completion_type", "NO_CHAIN"),
    Setting("transaction_read_only", 0, _MYSQL),
    Setting("tx_read_only", 0, _MARIADB),
    # What the server says: rows that warnings are about are found by the text `at row N`; definitions are parsed,
    Setting("lc_messages", "en_US"),
    Setting("sql_quote_show_create", 1),
    Setting("old_mode", "UTF8_IS_UTF8MB3", _MARIADB),
    # statistics of tables are those of now, not of up to a day ago,
    Setting("information_schema_stats_expiry", 0, _MYSQL),
    # and a primary key that MySQL has generated is logged, whether it is shown or not.
    Setting("show_gipk_in_create_table_and_information_schema", 1, "!80030"),
)

READING = (
    *_EVERY,
    # Strict modes compare no date with an invalid one. Others would give CHAR blanks that it does not have, or change
    # how a statement is parsed.
    Setting("sql_mode", "ALLOW_INVALID_DATES"),
    # A transaction shows one state.
    Setting("transaction_isolation", "REPEATABLE-READ", _MYSQL),
    Setting("tx_isolation", "REPEATABLE-READ", _MARIADB),
    # A statement waits for the lock of a table that is being altered as long as the client does.
    Setting("lock_wait_timeout", 86_400),
)
"""The settings of a session that reads and asks."""

OWN_WRITES = "@lockstep_writes"
"""Set in each session that writes to a target: the gates of a table that an application has left let it pass."""
WRITING = (
    *_EVERY,
    Setting(OWN_WRITES, 1),
    # Exact values: the target takes what the source could hold, and nothing is silently cut (STRICT).
    Setting("sql_mode", "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"),
    # No gap locks: shards of one database share the tombstone table. A named lock keeps Lockstep's own runs apart.
    Setting("transaction_isolation", "READ-COMMITTED", _MYSQL),
    Setting("tx_isolation", "READ-COMMITTED", _MARIADB),
    # Parents and children arrive in transactions of their own; the source has checked them.
    Setting("foreign_key_checks", 0),
    Setting("unique_checks", 1),
    Setting("check_constraint_checks", 1, _MARIADB),
    Setting("innodb_lock_wait_timeout", 30),
    # For the metadata lock of a table that is being altered; the default is a year.
    Setting("lock_wait_timeout", 60),
    # Some of the warnings about a value that was changed are notes.
    Setting("sql_notes", 1),
    # `_n` counts the lines of the file.
    Setting("auto_increment_increment", 1),
    Setting("auto_increment_offset", 1),
    # An algorithm that a statement does not allow is an error, and a DROP of what is missing too.
    Setting("alter_algorithm", "DEFAULT", _MARIADB),
    Setting("sql_if_exists", 0, _MARIADB),
    # With it off, null in a TIMESTAMP NOT NULL becomes the current time.
    Setting("explicit_defaults_for_timestamp", 1, allowed=True),
    # With another one, the name of the file that LOAD DATA LOCAL asks for is converted, and is not ours any more.
    Setting("character_set_filesystem", "binary", allowed=True),
)
"""The settings of a session that writes to a target, or makes its tables."""


def apply(connection: pymysql.Connection[Any], settings: Settings, *, where: str) -> None:
    """Sets them, and reads them back; but for what a fork of a server lacks, or gives to privileged accounts alone.

    Raises what PyMySQL raises, and Refused (connection.answer) for a session that does not keep a setting.
    """
    kept = [setting for setting in settings if not setting.allowed]
    with connection.cursor() as cursor:
        if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:  # type: ignore[attr-defined]
            cursor.execute("ROLLBACK AND NO CHAIN NO RELEASE")  # whatever completion_type says
        if not set_if_possible(cursor, _statement(kept)):
            kept = [setting for setting in kept if set_if_possible(cursor, _statement([setting]))]
        for setting in settings:
            if setting.allowed:
                set_if_possible(cursor, _statement([setting]))
        cursor.execute("SELECT 1" + "".join(setting.within(f", {setting.shown}") for setting in kept))
        values = dict(zip((column[0] for column in cursor.description), cursor.fetchall()[0], strict=True))
    for setting in kept:
        if setting.name in values and not setting.is_kept(values[setting.name]):
            raise Refused(
                f"The session has {setting.name} = {values[setting.name]!r}, although it was set to {setting.value!r}.",
                where=where,
                code="connection.answer",
                remedy="let the proxy or pool between Lockstep and the server pass SET SESSION on, and give each "
                "client a session of its own",
            )


def _statement(settings: Iterable[Setting]) -> str:
    return "SET SESSION autocommit = 1" + "".join(setting.within(f", {setting.assigned}") for setting in settings)


def set_if_possible(cursor: Any, statement: str) -> bool:
    """A SET of what not every server has or lets an account set; whether it was set."""
    try:
        cursor.execute(statement)
        return True
    except pymysql.err.MySQLError as error:
        if not error.args or error.args[0] not in _NOT_SETTABLE:
            raise
        return False
