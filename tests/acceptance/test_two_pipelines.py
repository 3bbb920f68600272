"""Two pipelines with one meta database and one target server, whose sources, targets and tables have equal names."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.lab.pipeline_file import sharded

COMMANDS = (
    ("check",), ("extract",), ("snapshot",), ("run",), ("status",), ("verify",), ("repair",),
    ("run", "--replay", "--target", "copy"),
    ("target", "create"), ("target", "layout"), ("target", "fence"), ("meta", "upgrade"), ("meta", "rebuild"),
    ("meta", "accept", "--target", "copy"), ("stage", "ls"), ("stage", "verify", "--deep"), ("stage", "isolated"),
    ("snapshot", "--pause"), ("snapshot", "--resume"), ("cutover", "status"), ("run",),
)  # fmt: skip
"""With the name of the pipeline after their first word, or their first two."""


class Two:
    def __init__(self, cursors: tuple[Any, Any], lockstep: Any) -> None:
        self.source, self.copy, self.lockstep = *cursors, lockstep
        for name in ("eu", "us"):
            self.source.execute(f"CREATE DATABASE {name}_db")
            self.source.execute(f"CREATE TABLE {name}_db.orders (id INT PRIMARY KEY, v VARCHAR(9))")
            self.source.execute(f"INSERT INTO {name}_db.orders VALUES (1, '{name}'), (2, '{name}'), (3, '{name}')")
            lockstep.write(
                name,
                f"{name}_db",
                stage={"uri": (lockstep.directory / f"stage-{name}").as_uri()},
                snapshot="mode: initial",
                verify="mode: ordered",
                targets=[sharded("copy", "env:COPY", "orders", f"{name}_copy", function="mod")],
            )

    def all_of(self, name: str) -> None:
        """Every command, on one pipeline."""
        for words in COMMANDS:
            two = words[0] in ("target", "meta", "stage", "cutover")
            before, after = (words[:2], words[2:]) if two else (words[:1], words[1:])
            done = self.lockstep(*before, f"{name}.yaml", *after, code=None)
            assert done.code in ((0, 2) if words[0] in ("cutover", "repair") else (0,)), (words, done.out, done.err)

    def known(self, name: str) -> list[str]:
        """What meta has of a pipeline, but for the time until which leases were taken."""
        with closing(sqlite3.connect(self.lockstep.directory / "meta.db")) as meta:
            tables = [table for (table,) in meta.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            mine = [table for table in tables if table != "lockstep_version"]
            return sorted(
                json.dumps([table, *row]) for table in mine
                for row in meta.execute(f"SELECT * FROM {table} WHERE pipeline = ?", (name,))
            )  # fmt: skip

    def written(self, name: str) -> list[tuple[Any, ...]]:
        self.copy.execute(
            f"SELECT *, HEX(_cdc_version) FROM {name}_copy.orders_0 UNION ALL "
            f"SELECT *, HEX(_cdc_version) FROM {name}_copy.orders_1 ORDER BY 1"
        )
        return list(self.copy.fetchall())


@pytest.fixture
def two(cursors: tuple[Any, Any], lockstep: Any) -> Two:
    return Two(cursors, lockstep)


def test_every_command_on_one_of_two_pipelines_with_equal_names_leaves_the_other_alone(two: Two) -> None:
    two.all_of("eu")
    known, written = two.known("eu"), two.written("eu")
    assert [row[:2] for row in written] == [(1, "eu"), (2, "eu"), (3, "eu")]
    two.all_of("us")
    assert two.known("eu") == known
    assert two.written("eu") == written
    assert [row[:2] for row in two.written("us")] == [(1, "us"), (2, "us"), (3, "us")]
    two.source.execute("UPDATE eu_db.orders SET v = 'new' WHERE id = 2")
    two.lockstep("run", "eu.yaml")
    assert [row[1] for row in two.written("eu")] == ["eu", "new", "eu"]
