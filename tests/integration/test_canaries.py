"""What must not leave the source leaves it nowhere: canaries wherever a value can be, then a look at all
that was written and said."""

from __future__ import annotations

import io
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cdc_core.cli.app import app
from cdc_core.config import parse
from cdc_core.errors import LockstepError
from cdc_core.meta import Meta
from cdc_core.operations.extract import Extractor
from tests.lab.opened import opened as open_for
from tests.lab.refusals import refusal
from tests.lab.target_rows import shop, target_table

CANARY = "c4n4ry"
"""Every value that must not be seen begins so; numbers among them are 739173..."""
NUMBER = "739173"


@dataclass(frozen=True)
class Source:
    sql: Any
    name: str

    def execute(self, *statements: str, session: str = "") -> None:
        with self.sql.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in filter(None, (session, *statements)):
                cursor.execute(statement)


@pytest.fixture(params=["mariadb", "mysql9"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = Source(request.getfixturevalue(request.param), f"c_{uuid.uuid4().hex[:10]}")
    with made.sql.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {made.name}")
        cursor.execute(f"CREATE USER {made.name}@'%' IDENTIFIED BY '{CANARY}-password'")
        cursor.execute(f"GRANT ALL ON *.* TO {made.name}@'%'")
    yield made
    with made.sql.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {made.name}")
        cursor.execute(f"DROP USER {made.name}")


PIPELINE = """
pipeline: shop
sources: [{{name: shop, connection: env:SOURCE, server_id: 79, heartbeat_s: 1, read_timeout_s: 10, reconnect_s: 1,
           start: {{position: {{file: {file}, offset: {offset}}}}}}}]
tables:
  include: ['{name}\\..*']
  on_unreadable: {on_unreadable}
  on_unlogged_change: {on_unlogged}
  columns:
    salt: env:SALT
    mask: ['.*\\.(email|born|code)']
    exclude: ['.*\\.hidden']
stage: {{uri: {stage}}}
meta: {{url: "sqlite:///{meta}"}}
"""


def change(source: Source) -> None:
    """Masked columns of every operation, images before, masked keys, texts that no type holds, and statements."""
    rows = "id INT PRIMARY KEY, email VARCHAR(60), hidden VARCHAR(60), born DATE, n INT"
    source.execute(
        f"CREATE TABLE t ({rows})",
        "CREATE TABLE k (code VARCHAR(60) PRIMARY KEY, n INT)",
        f"CREATE TABLE s ({rows})",
        f"INSERT INTO t VALUES (1, '{CANARY}-insert', '{CANARY}-hidden', '1991-07-03', 1)",
        f"INSERT INTO t VALUES (2, '{CANARY}-x', NULL, NULL, 2)",
        f"UPDATE t SET email = '{CANARY}-after', n = 3 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        f"INSERT INTO k VALUES ('{CANARY}-key', 1)",
        f"UPDATE k SET code = '{CANARY}-other-key'",
        session="SET sql_mode = ''",
    )
    source.execute("INSERT INTO t (id, born) VALUES (7, '2024-02-31')", session="SET sql_mode = 'ALLOW_INVALID_DATES'")
    source.execute(
        f"ALTER TABLE t ADD note VARCHAR(60) DEFAULT '{CANARY}-default' COMMENT '{CANARY}-comment'",
        f"ALTER TABLE t ADD e ENUM('{CANARY}-member', 'b')",
        f"ALTER TABLE t ADD num INT DEFAULT {NUMBER}",
        f"ALTER TABLE t ADD h VARBINARY(9) DEFAULT x'{NUMBER}' /* {CANARY}-aside */",
        f"ALTER TABLE t COMMENT = '{CANARY}-of-table'",
        f"CREATE TABLE far (a INT) CONNECTION='mysql://u:{CANARY}-connection@h/d/t'",
        f"CREATE TABLE made AS SELECT 1 AS a, '{CANARY}-made' AS email",
        "TRUNCATE TABLE k",
    )
    source.execute(
        f"INSERT INTO s (id, email) VALUES ({NUMBER}, '{CANARY}-statement')", session="SET binlog_format = 'STATEMENT'"
    )


def written(directory: Path) -> Iterator[tuple[str, bytes]]:
    """All that lies there: Parquet with its values decoded, and the rest as it is."""
    for path in sorted(one for one in directory.rglob("*") if one.is_file()):
        yield f"name of {path}", str(path).encode()
        yield str(path), path.read_bytes()
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            yield f"{path}: schema", str(file.schema_arrow.metadata).encode() + str(file.schema_arrow).encode()
            rows = file.read().to_pylist()
            yield f"{path}: rows", str(rows).encode()


def seen(texts: Iterator[tuple[str, bytes]], *marks: str) -> list[str]:
    return [place for place, text in texts if any(mark.encode() in text for mark in marks)]


@pytest.mark.parametrize(("on_unreadable", "on_unlogged"), [("isolate", "record"), ("stop", "stop")])
def test_no_masked_value_and_no_password_is_in_anything_that_is_written_or_said(
    source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    on_unreadable: str, on_unlogged: str,
) -> None:  # fmt: skip
    with source.sql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        file, offset = cursor.fetchall()[-1][:2]
    change(source)
    stage, meta = tmp_path / "stage", tmp_path / "meta.db"
    text = PIPELINE.format(
        file=file, offset=offset, name=source.name, stage=stage.as_uri(), meta=meta, on_unreadable=on_unreadable,
        on_unlogged=on_unlogged,
    )  # fmt: skip
    (tmp_path / "shop.yaml").write_text(text)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    environ = {
        "SOURCE": f"mysql://{source.name}:{CANARY}-password@127.0.0.1:{source.sql.port}",
        "SALT": f"{CANARY}-salt",
    }
    caplog.set_level(logging.DEBUG)
    said = io.StringIO()
    pipeline = parse(text, where="shop.yaml")
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as opened:
        try:
            with Extractor(open_for(pipeline, opened, environ), "shop") as extractor:
                extractor.drain()
        except LockstepError as error:
            assert on_unreadable == "stop"
            said.write(f"{error}\n{error!r}")
    runner = CliRunner(env=environ)
    for command in (["status"], ["stage", "ls"], ["stage", "isolated"], ["stage", "verify", "--deep"], ["check"]):
        for json in ([], ["--json"]) if command[0] == "status" else ([],):
            done = runner.invoke(app, ["-vv", "--debug", *command, str(tmp_path / "shop.yaml"), *json])
            said.write(f"{done.output}\n{done.exception!r}\n")
    here = [("said", said.getvalue().encode()), ("log", caplog.text.encode()), *written(tmp_path)]
    if on_unlogged == "record":
        assert any(path.suffix == ".parquet" for path in stage.rglob("*")), "something was staged"
    # Values of columns that are not masked, and members of an ENUM, are data: they are on the stage, and only there.
    rows = [one for one in here if one[0].endswith((".parquet", ": rows", ": schema", ".json"))]
    others = [one for one in here if one not in rows]
    assert seen(iter(others), CANARY, NUMBER) == []
    masked = [f"{CANARY}-{one}" for one in ("insert", "hidden", "x", "after", "key", "other-key", "statement",
              "password", "salt", "connection", "comment", "aside", "of-table", "made")]  # fmt: skip
    assert seen(iter(rows), *masked, "1991, 7, 3", "2024-02-31") == []


@pytest.mark.parametrize("server", ["mariadb_target", "mysql9"])
def test_a_row_that_a_target_does_not_take_is_named_by_its_key_alone(
    server: str, request: pytest.FixtureRequest
) -> None:
    with target_table(request.getfixturevalue(server)) as table:
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
            assert all(CANARY not in one.reason for one in table.unfit)
