"""What must not leave the source leaves it nowhere: canaries wherever a value can be, then a look at all
that was written and said."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from typer.testing import CliRunner

from cdc_core.cli.app import app
from cdc_core.errors import LockstepError
from examples.sandbox.sql_server import SqlServer
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.refusals import refusal
from tests.lab.target_rows import shop, target_table

CANARY = "c4n4ry"
"""Every value that must not be seen begins so; numbers among them are 739173..."""
NUMBER = "739173"


COLUMNS = "columns: {salt: env:SALT, mask: ['.*[.](email|born|code)'], exclude: ['.*[.]hidden']}"


def change(origin: Origin) -> None:
    """Masked columns of every operation, images before, masked keys, texts that no type holds, and statements."""
    rows = "id INT PRIMARY KEY, email VARCHAR(60), hidden VARCHAR(60), born DATE, n INT"
    origin.execute(
        "SET sql_mode = ''",
        f"CREATE TABLE t ({rows})",
        "CREATE TABLE k (code VARCHAR(60) PRIMARY KEY, n INT)",
        f"CREATE TABLE s ({rows})",
        f"INSERT INTO t VALUES (1, '{CANARY}-insert', '{CANARY}-hidden', '1991-07-03', 1)",
        f"INSERT INTO t VALUES (2, '{CANARY}-x', NULL, NULL, 2)",
        f"UPDATE t SET email = '{CANARY}-after', n = 3 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        f"INSERT INTO k VALUES ('{CANARY}-key', 1)",
        f"UPDATE k SET code = '{CANARY}-other-key'",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO t (id, born) VALUES (7, '2024-02-31')",
    )
    origin.execute(
        f"ALTER TABLE t ADD note VARCHAR(60) DEFAULT '{CANARY}-default' COMMENT '{CANARY}-comment'",
        f"ALTER TABLE t ADD e ENUM('{CANARY}-member', 'b')",
        f"ALTER TABLE t ADD num INT DEFAULT {NUMBER}",
        f"ALTER TABLE t ADD h VARBINARY(9) DEFAULT x'{NUMBER}' /* {CANARY}-aside */",
        f"ALTER TABLE t COMMENT = '{CANARY}-of-table'",
        f"CREATE TABLE far (a INT) CONNECTION='mysql://u:{CANARY}-connection@h/d/t'",
        f"CREATE TABLE made AS SELECT 1 AS a, '{CANARY}-made' AS email",
        "TRUNCATE TABLE k",
        "SET binlog_format = 'STATEMENT'",
        f"INSERT INTO s (id, email) VALUES ({NUMBER}, '{CANARY}-statement')",
    )


def written(directory: Path) -> Iterator[tuple[str, bytes]]:
    """All that lies there: Parquet and Avro with their values decoded, and the rest as it is."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        yield f"name of {path}", str(path).encode()
        yield str(path), path.read_bytes()
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            yield f"{path}: schema", str(file.schema_arrow.metadata).encode() + str(file.schema_arrow).encode()
            rows = file.read().to_pylist()
            yield f"{path}: rows", str(rows).encode()
        if path.suffix == ".avro":
            with AvroFile[Record](PyArrowFileIO().new_input(str(path))) as records:
                yield f"{path}: records", str(list(records)).encode()


def seen(texts: Iterator[tuple[str, bytes]], *marks: str) -> list[str]:
    return [place for place, text in texts if any(mark.encode() in text for mark in marks)]


@pytest.mark.parametrize(("on_unreadable", "on_unlogged"), [("isolate", "record"), ("stop", "stop")])
def test_no_masked_value_and_no_password_is_in_anything_that_is_written_or_said(
    origin: Origin, make_line: Callable[..., Lab], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, on_unreadable: str, on_unlogged: str,
) -> None:  # fmt: skip
    policies = f"on_unreadable: {on_unreadable}, on_unlogged_change: {on_unlogged}"
    user = origin.name
    origin.execute(f"CREATE USER {user}@'%' IDENTIFIED BY '{CANARY}-password'", f"GRANT ALL ON *.* TO {user}@'%'")
    line = make_line(source="read_timeout_s: 10, reconnect_s: 1", tables=f"{policies}, {COLUMNS}")
    change(origin)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    line.environ |= {
        "SOURCE": f"mysql://{user}:{CANARY}-password@127.0.0.1:{origin.sql.port}", "SALT": f"{CANARY}-salt",
    }  # fmt: skip
    caplog.set_level(logging.DEBUG)
    said = io.StringIO()
    try:
        line.extract()
    except LockstepError as error:
        assert on_unreadable == "stop"
        said.write(f"{error}\n{error!r}")
    runner = CliRunner(env=line.environ)
    for command in (["status"], ["stage", "ls"], ["stage", "isolated"], ["stage", "verify", "--deep"], ["check"]):
        for json in ([], ["--json"]) if command[0] == "status" else ([],):
            done = runner.invoke(app, ["-vv", "--debug", *command, str(line.file), *json])
            said.write(f"{done.output}\n{done.exception!r}\n")
    origin.execute(f"DROP USER {user}")
    here = [("said", said.getvalue().encode()), ("log", caplog.text.encode()), *written(tmp_path)]
    if on_unlogged == "record":
        assert any(path.suffix == ".parquet" for path in (tmp_path / "stage").rglob("*")), "something was staged"
    # Values of columns that are not masked, and members of an ENUM, are data: they are on the stage, and only there.
    rows = [piece for piece in here if piece[0].endswith((".parquet", ": rows", ": schema", ".json"))]
    others = [piece for piece in here if piece not in rows]
    assert seen(iter(others), CANARY, NUMBER) == []
    masked = [f"{CANARY}-{place}" for place in ("insert", "hidden", "x", "after", "key", "other-key", "statement",
              "password", "salt", "connection", "comment", "aside", "of-table", "made")]  # fmt: skip
    assert seen(iter(rows), *masked, "1991, 7, 3", "2024-02-31") == []


def test_a_row_that_a_target_does_not_take_is_named_by_its_key_alone(server: SqlServer) -> None:
    with target_table(server) as table:
        table.query(f"ALTER TABLE {table.facts.name} MODIFY code VARCHAR(20) NOT NULL")
        table.write([shop("u", 1, CANARY, 1, 10)])
        same = refusal(lambda: table.write([shop("u", 2, CANARY, 1, 10)]))
        assert CANARY not in str(same)
        for number, column, code in (
            (3, "VARCHAR(20)", None),
            (4, "VARCHAR(20)", CANARY * 9),
            (5, "INT", f"'{CANARY}"),
        ):
            table.query(f"DELETE FROM {table.facts.name}")
            table.query(f"ALTER TABLE {table.facts.name} MODIFY code {column} NOT NULL")
            bad = shop("u", number, code, 1, 10)
            error = refusal(lambda: table.write([bad]))  # noqa: B023
            assert error.code == "target.row_error"
            assert CANARY not in str(error)
            assert error.__cause__ is None
            table.write([bad], quarantine=True)
            assert table.unfit
            assert all(CANARY not in row.reason for row in table.unfit)
