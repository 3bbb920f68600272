"""The witness of a move: what `make move` and the benchmark of a cutover believe."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from examples.move.application import NEW, OLD, Application, Layout


def test_a_row_that_is_missing_twice_or_of_nobody_is_noticed(mariadb: Any, tmp_path: Path) -> None:
    layout = Layout(f"witness_{uuid.uuid4().hex[:8]}")
    (tmp_path / "to").write_text(NEW)
    application = Application({OLD: mariadb, NEW: mariadb}, tmp_path / "to", layout, ["a"], rest={1_000_000: 7})
    application.written["a"] = {1: 5}
    with closing(mariadb.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for number in range(2):
            cursor.execute(f"CREATE DATABASE {layout.database}_{number}")
            for table in range(2):
                cursor.execute(f"CREATE TABLE {layout.database}_{number}.a_{table} (id INT PRIMARY KEY, n INT)")
        try:
            cursor.execute(f"INSERT INTO {layout.place(NEW, 'a', 1_000_000)} VALUES (1000000, 7)")
            assert application.wrong(NEW) == {"a": 1}, "missing"
            cursor.execute(f"INSERT INTO {layout.place(NEW, 'a', 1)} VALUES (1, 5)")
            assert application.wrong(NEW) == {"a": 0}
            cursor.execute(f"INSERT INTO {layout.place(NEW, 'a', 2)} VALUES (1, 5)")
            assert application.wrong(NEW) == {"a": 1}, "twice"
            cursor.execute(f"UPDATE {layout.place(NEW, 'a', 2)} SET id = 99")
            assert application.wrong(NEW) == {"a": 1}, "of nobody"
        finally:
            for number in range(2):
                cursor.execute(f"DROP DATABASE {layout.database}_{number}")
