"""One round: random tables at a source, a history with definitions between, and after each run source = state = target,
which `lockstep verify` confirms. What a person would call a finding is a `Finding`; the round goes on where it can."""

from __future__ import annotations

import copy
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pymysql

from tests.fuzz import tables
from tests.fuzz.kinds import CHARSETS, MARIADB, MYSQL, of_file, of_server, shown
from tests.fuzz.tables import Table, name
from tests.lab.databases import drop_database
from tests.lab.forked_commands import Done, ForkedCommands

PIPELINE = """
pipeline: fuzz
sources: [{{name: source, connection: env:SOURCE, server_id: 4711}}]
tables:
  include: ['{database}\\..*']
  on_unlogged_change: resync
  on_unreadable: resync
  on_truncate: {on_truncate}
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
snapshot: {{mode: initial}}
targets:
  - name: copy
    connections: [env:TARGET]
    on_missing_table: create
    tables:
      '*':
        {{database: {database}_copy, no_key: rows, on_new_column: add, on_truncate: {at_target},
          guard: {{store: {store}}}}}
"""
SESSIONS = (
    "time_zone = '-11:00'", "time_zone = '+05:30'", "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'", "sql_mode = 'ANSI_QUOTES'",
    "sql_mode = 'NO_BACKSLASH_ESCAPES,NO_ZERO_DATE'", "character_set_results = binary", "sql_select_limit = 2",
    "binlog_row_image = MINIMAL", "binlog_row_image = NOBLOB", "binlog_row_image = FULL", "foreign_key_checks = 0",
    "max_sort_length = 64",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """what: in one line. seed: repeats the round. statements: of the source up to here."""

    what: str
    seed: str
    statements: Sequence[str]

    @property
    def line(self) -> str:
        return json.dumps({"seed": self.seed, "what": self.what, "statements": self.statements}, ensure_ascii=False)


class Round:
    """source, target: servers of the sandbox. folder: empty."""

    def __init__(self, commands: ForkedCommands, source: Any, target: Any, seed: str, folder: Path) -> None:
        self._commands, self._source, self._target, self._seed, self._folder = commands, source, target, seed, folder
        self._chance = random.Random(seed)
        self._flavor = flavor_of(source)
        self._database = f"f{zlib.crc32(seed.encode())}"
        self._statements: list[str] = []
        self._tables: list[Table] = []

    def play(self) -> Iterator[Finding]:
        """Yields what is wrong."""
        try:
            yield from self._play()
        finally:
            for server, database in ((self._source, self._database), (self._target, f"{self._database}_copy")):
                drop_database(server, database)

    def _play(self) -> Iterator[Finding]:
        chance = self._chance
        with self._at(self._source) as source:
            self._execute(source, f"CREATE DATABASE {self._database} CHARACTER SET utf8mb4")
            metadata = chance.choice(["FULL", "FULL", "MINIMAL"])
            self._execute(source, f"SET GLOBAL binlog_row_metadata = {metadata}")
        for number in range(chance.randint(1, 3)):
            self._create(f"t{number}")
        self._history(chance.randint(0, 4))
        store, on_truncate, at_target = chance.choice(
            [("row", "stage", "apply"), ("row", "unlogged", "stop"), ("table", "unlogged", "stop")]
        )
        self._folder.joinpath("fuzz.yaml").write_text(
            PIPELINE.format(
                database=self._database, folder=self._folder, store=store, on_truncate=on_truncate, at_target=at_target
            )
        )
        for _ in range(chance.randint(2, 4)):
            if (stopped := self._run("run", "fuzz.yaml")) is not None:
                yield stopped
                return
            yield from self._compare()
            self._history(chance.randint(1, 6))

    def _create(self, title: str) -> None:
        """Tries definitions until the server takes one."""
        collations = self._collations()
        for _ in range(20):
            made = tables.random_table(
                self._chance, self._database, title, self._flavor, flavor_of(self._target), collations
            )
            with self._at(self._source) as source:
                if self._execute(source, made.create):
                    self._tables.append(made)
                    return

    def _collations(self) -> list[str]:
        with self._at(self._source) as source, source.cursor() as cursor:
            cursor.execute("SELECT collation_name FROM information_schema.collations WHERE collation_name IS NOT NULL")
            return sorted(tables.collations_of(self._flavor, [str(value) for (value,) in cursor.fetchall()], CHARSETS))

    def _history(self, sessions: int) -> None:
        chance = self._chance
        for _ in range(sessions):
            with self._at(self._source) as source:
                for setting in chance.sample(SESSIONS, chance.randint(0, 3)):
                    self._execute(source, f"SET SESSION {setting}")
                for _ in range(chance.randint(1, 5)):
                    self._step(source)

    def _step(self, source: Any) -> None:
        chance = self._chance
        if chance.random() < 0.04:
            self._create(f"n{len(self._statements)}")
        at = chance.randrange(len(self._tables)) if self._tables else None
        if at is None:
            return
        if chance.random() < 0.15:
            changed = copy.deepcopy(self._tables[at])
            if self._execute(source, tables.redefine(chance, changed)):
                self._tables[at] = changed
            return
        several = chance.random() < 0.4
        if several:
            self._execute(source, "BEGIN")
        for _ in range(chance.randint(1, 4) if several else 1):
            self._execute(source, tables.change(chance, self._tables[at]))
        if several:
            self._execute(source, chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))

    def _run(self, *arguments: str) -> Finding | None:
        """A run is tried again where it says so; it may want several, as a copy comes between."""
        for _ in range(4):
            done = self._lockstep(*arguments)
            if done.code != 75:
                break
        if done.code == 0:
            return None
        return self._finding(f"{' '.join(arguments)}: exit {done.code}: {_said(done)}")

    def _compare(self) -> Iterator[Finding]:
        for table in self._tables:
            expected = self._rows(self._source, table.database, table)
            assert isinstance(expected, Counter), expected
            found = self._rows(self._target, f"{self._database}_copy", table)
            if isinstance(found, str):
                yield self._finding(f"target of {table.name}: {found}")
            elif found != expected:
                yield self._finding(f"target of {table.name} differs: {_difference(expected, found)}")
            if self._flavor == MARIADB:  # it logs no virtual column in partial images, and the state lacks it
                table = replace(table, columns=[column for column in table.columns if column.options != " VIRTUAL"])
                expected = self._rows(self._source, table.database, table)
            state = self._state(table) if expected else expected  # an empty table may have nothing staged
            if isinstance(state, str):
                yield self._finding(f"state of {table.name}: {state}")
            elif state != expected:
                yield self._finding(f"state of {table.name} differs: {_difference(expected, state)}")
        done = self._lockstep("verify", "fuzz.yaml")
        if done.code != 0:
            yield self._finding(f"verify: exit {done.code}: {_said(done)}")

    def _rows(self, server: Any, database: str, table: Table) -> Counter[tuple[Any, ...]] | str:
        """By the server itself."""
        columns = ", ".join(shown(column.kind.base, name(column.name)) for column in table.columns)
        with self._at(server) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
            try:
                cursor.execute(f"SELECT {columns} FROM {name(database)}.{name(table.name)}")
            except pymysql.err.MySQLError as error:
                return str(error)
            return Counter(
                tuple(of_server(column.kind.base, value) for column, value in zip(table.columns, row, strict=True))
                for row in cursor.fetchall()
            )

    def _state(self, table: Table) -> Counter[tuple[Any, ...]] | str:
        file = self._folder / "state.parquet"
        done = self._lockstep(
            "stage", "export", "fuzz.yaml", f"{table.database}.{table.name}", "-o", str(file), "--force"
        )
        if done.code != 0:
            return f"exit {done.code}: {_said(done)}"
        found: Counter[tuple[Any, ...]] = Counter()
        for row in pq.read_table(file).to_pylist():
            exact = dict(row.get("_cdc_literal") or [])
            if absent := {column.name for column in table.columns} & set(json.loads(row.get("_cdc_absent") or "[]")):
                return f"absent: {absent}"
            found[tuple(_cell(column, row, exact) for column in table.columns)] += 1
        return found

    def _lockstep(self, *arguments: str) -> Done:
        environ = {**os.environ, "SOURCE": self._source.url, "TARGET": self._target.url}
        return self._commands.run(*arguments, "--json", directory=self._folder, environ=environ)

    def _finding(self, what: str) -> Finding:
        return Finding(what, self._seed, tuple(self._statements))

    def _at(self, server: Any) -> Any:
        return closing(server.connect(autocommit=True, charset="utf8mb4"))

    def _execute(self, connection: Any, statement: str) -> bool:
        """Whether the server took it; only then it is part of the history."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        except pymysql.err.MySQLError:
            return False
        self._statements.append(statement)
        return True


def flavor_of(server: Any) -> str:
    return MYSQL if "MySql" in type(server).__name__ else MARIADB


def _cell(column: tables.Column, row: dict[str, Any], exact: dict[str, str]) -> str | None:
    if column.name in exact:
        return of_server(column.kind.base, exact[column.name])
    # A column that no staged row has yet is null in all of them.
    return of_file(column.kind.base, row.get(column.name))


def _difference(expected: Counter[Any], found: Counter[Any]) -> str:
    return f"lacks {list((expected - found).items())[:2]}, has {list((found - expected).items())[:2]}"


def _said(done: Done) -> str:
    try:
        error = done.document.get("error") or done.document
        return f"{error.get('code')}: {str(error.get('what') or error)[:400]}"
    except (ValueError, AssertionError):
        return (done.err or done.out)[-400:]
