"""An application that writes all the time, to the place that a file names, and remembers what servers have confirmed.

A write that meets a closed table is made again where the file leads now, as an application with a flag or a proxy does.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from examples.sandbox.sql_server import SqlServer

OLD, NEW = "old", "new"
REFUSED = 1644
"""The error of a table that was moved."""
_PAUSE_S = 0.005


@dataclass(frozen=True)
class Layout:
    """Where a row is: in a table of one database, or in one of the tables of its shards, `databases` × `tables`."""

    database: str
    databases: int = 2
    tables: int = 2

    def place(self, to: str, table: str, key: int) -> str:
        if to == OLD:
            return f"{self.database}.{table}"
        shard = key % (self.databases * self.tables)
        return f"{self.database}_{shard // self.tables}.{table}_{shard % self.tables}"

    def places(self, to: str, table: str) -> list[str]:
        """All tables that have rows of this one."""
        return sorted({self.place(to, table, key) for key in range(self.databases * self.tables)})


@dataclass(frozen=True, slots=True)
class Write:
    """began_s: when, by `time.perf_counter`. took_s: until it was confirmed, with what it waited for."""

    began_s: float
    took_s: float


class Application:
    """Writes for the length of a block.

    written: what servers have confirmed, by table and id. writes: that were confirmed.
    refused: how often a table was closed. errors: what ended a writer; empty if all went well.
    """

    def __init__(
        self,
        servers: Mapping[str, SqlServer],
        to: Path,
        layout: Layout,
        tables: Sequence[str],
        *,
        writers: int = 3,
        per_s: float = 300,
        keys: int = 50,
        rest: Mapping[int, int] | None = None,
    ) -> None:
        """servers: the OLD one and the NEW one. to: the file. per_s: writes of all writers. keys: of a writer. rest:
        rows of each table that it does not write."""
        self._servers, self._to, self._layout, self._tables = servers, to, layout, tables
        self._writers, self._per_s, self._keys, self._rest = writers, per_s, keys, dict(rest or {})
        self.written: dict[str, dict[int, int]] = {table: {} for table in tables}
        self.writes: list[Write] = []
        self.refused = 0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]

    def __enter__(self) -> Application:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def seen_until_now(self) -> list[Write]:
        """The writes since the last call."""
        seen, self.writes = self.writes, []
        return seen

    def wrong(self, to: str) -> dict[str, int]:
        """By table, how many rows a place lacks, has more than once, or has though nobody wrote them."""
        found = {}
        with closing(self._servers[to].connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for table, written in self.written.items():
                places = self._layout.places(to, table)
                cursor.execute(" UNION ALL ".join(f"SELECT id, n FROM {place}" for place in places))
                there, wanted = Counter(cursor.fetchall()), Counter((self._rest | written).items())
                found[table] = ((there - wanted) + (wanted - there)).total()
        return found

    def _write(self, number: int) -> None:
        try:
            with (
                closing(self._servers[OLD].connect(autocommit=True)) as old,
                closing(self._servers[NEW].connect(autocommit=True)) as new,
            ):
                self._write_to({OLD: old, NEW: new}, number)
        except (OSError, pymysql.err.MySQLError) as error:
            self.errors.append(error)

    def _write_to(self, sessions: Mapping[str, Any], number: int) -> None:
        turn, due_s = 0, time.monotonic()
        while not self._stop.is_set():
            turn, due_s = turn + 1, max(due_s + self._writers / self._per_s, time.monotonic() - 1)
            time.sleep(max(0.0, due_s - time.monotonic()))
            table, key = self._tables[turn % len(self._tables)], number + self._writers * (turn * 31 % self._keys)
            began_s = time.perf_counter()
            while not self._put(sessions, table, key, turn):
                time.sleep(_PAUSE_S)
            self.writes.append(Write(began_s, time.perf_counter() - began_s))
            self.written[table][key] = turn

    def _put(self, sessions: Mapping[str, Any], table: str, key: int, value: int) -> bool:
        to = self._to.read_text().strip()
        place = self._layout.place(to, table, key)
        try:
            with sessions[to].cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {place} (id, n) VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE n = {value}"
                )
        except pymysql.err.MySQLError as error:
            if error.args[0] != REFUSED:
                raise
            self.refused += 1
            return False
        return True
