"""Every recipe of docs/analysts.md, run on real staged changes: what it prints is what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "analysts.md"
BLOCKS = re.compile(r"^```(sql|python|python spark)\n(.*?)^```\n^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGES = (
    ("09:00", "INSERT INTO orders VALUES (1,'new',10,NULL), (2,'new',20,NULL), (3,'new',30,NULL)"),
    ("09:30", "UPDATE orders SET status='paid' WHERE order_id=1"),
    ("10:00", "UPDATE orders SET order_id=20 WHERE order_id=2"),
    ("10:30", "DELETE FROM orders WHERE order_id=3"),
    ("11:00", "UPDATE orders SET status='sent' WHERE order_id=1"),
    ("11:00", "INSERT INTO orders VALUES (4,'new',40,NULL)"),
    ("09:45", "INSERT INTO orders VALUES (5,'late',50,NULL)"),
)


TABLES = re.compile(r"\bshop\.(?=orders|customers)")


@pytest.fixture
def staged(source_database: Any, lockstep: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The changes of the document, staged by the pipeline shop.yaml in the working directory."""
    source_database.execute(
        "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(20), amount DECIMAL(12,2), at DATETIME)",
        "CREATE TABLE customers (customer_id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bo'), (3, 'Cy')",
    )
    lockstep.init(source_database.server, source_database.name)
    for time, statement in CHANGES:
        moment = f"SET time_zone = '+00:00', timestamp = UNIX_TIMESTAMP('2026-11-20 {time}:00')"
        source_database.execute(moment, statement)
    lockstep("snapshot", "shop.yaml")
    source_database.execute(
        "UPDATE customers SET name = 'Bob' WHERE customer_id = 2", "DELETE FROM customers WHERE customer_id = 3"
    )
    lockstep("extract", "shop.yaml")
    monkeypatch.chdir(lockstep.directory)
    return source_database


def recipes(*languages: str) -> Iterator[tuple[str, str, str]]:
    """(language, recipe, what it prints)."""
    for language, code, expected in BLOCKS.findall(DOCUMENT.read_text(encoding="utf-8")):
        if language in languages:
            yield language, code, expected


def answer(lockstep: Any, query: str) -> str:
    found = lockstep("stage", "sql", "shop.yaml", query).document
    rows = [["NULL" if value is None else str(value) for value in row] for row in found["rows"]]
    return "".join(" | ".join(row) + "\n" for row in [found["columns"], *rows])


def test_each_query_answers_what_the_document_shows(staged: Any, lockstep: Any) -> None:
    queries = list(recipes("sql"))
    assert len(queries) == 7
    for _, query, expected in queries:
        assert answer(lockstep, TABLES.sub(f"{staged.name}.", query)) == expected, query


@pytest.mark.spark
def test_each_program_prints_what_the_document_shows(staged: Any, spark: Any) -> None:
    names: dict[str, Any] = {"spark": spark}
    programs = list(recipes("python", "python spark"))
    assert len(programs) == 5
    for _, program, expected in programs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(TABLES.sub(f"{staged.name}.", program), names)
        assert printed.getvalue() == TABLES.sub(f"{staged.name}.", expected), program


def test_the_document_uses_the_public_api_alone() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert "import lockstep" in text
    assert re.findall(r"\b(?:cdc_core|spark_jobs|lockstep_airflow)\b", text) == []
