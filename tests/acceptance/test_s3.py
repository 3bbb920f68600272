"""The whole line with its stage in a bucket of a real S3 server: staged by us, read and written by Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

TABLE = "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(20) NOT NULL, amount DECIMAL(12,2), at DATETIME)"
CHANGES = (
    "INSERT INTO orders VALUES (1,'new',9.99,'2026-01-01 10:00:00'), (2,'new',NULL,NULL), (3,'gone',1,NULL)",
    "UPDATE orders SET status='paid', amount=12.50 WHERE order_id=1",
    "DELETE FROM orders WHERE order_id=3",
    "UPDATE orders SET order_id=20 WHERE order_id=2",
)
ROWS = "SELECT order_id, status, amount, at FROM orders ORDER BY order_id"


@pytest.fixture
def bucket(s3_server: Any, source_database: Any, target_database: Any, lockstep: Any) -> None:
    """A pipeline `shop.yaml` from a table to its copy, with the stage in a new bucket; its keys are exported."""
    name = s3_server.create_bucket(source_database.name.replace("_", "-"))
    database = source_database.name
    source_database.execute(TABLE, "INSERT INTO orders VALUES (100, 'old', 7, NULL)")
    lockstep.environ |= {
        "SHOP": source_database.server.url,
        "COPY": target_database.server.url,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
    }
    target_database.execute(TABLE)
    stage = ("--stage", f"s3://{name}/staged here")
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{database}\..*", "--target", "env:COPY", *stage)
    file = lockstep.directory / "shop.yaml"
    file.write_text(file.read_text().replace("stage:\n", f"stage:\n  s3_endpoint: {s3_server.endpoint}\n"))


def texts_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each file, as text."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".jar" and path.stat().st_size < 1 << 26:
            yield path, path.read_bytes().decode(errors="replace")


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """The command lines of every process that lives while the block runs, as anybody on the machine can read them."""
    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            time.sleep(0.1)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by", ["spark", "driver"])
def test_the_whole_line_runs_with_its_stage_in_a_bucket_and_keeps_the_keys_to_itself(
    bucket: None, source_database: Any, target_database: Any, s3_server: Any, lockstep: Any, by: str
) -> None:
    """driver: as by default, the driver of the jobs does all of it itself; its machine has no JVM then."""
    if by == "spark":
        file = lockstep.directory / "shop.yaml"
        file.write_text(f"{file.read_text()}\nspark: {{driver_rows: 0}}\n")
    assert lockstep("check", "shop.yaml").document["ok"] is True
    source_database.execute(*CHANGES)
    with command_lines() as seen:
        ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
    (entry,) = ran.document["ledgers"]
    assert (entry["staged_rows"], entry["key_changes"], entry["problems"]) == (6 + 3, 1, [])  # three rows are copied
    rows = source_database.execute(ROWS)
    assert target_database.execute(ROWS) == rows

    if by == "spark":
        assert any("SparkSubmit" in line for line in seen)
    assert "expectations met" in ran.err
    kept = dict(texts_below(lockstep.directory))
    assert len(kept) > 1, "the pipeline file and what the run has left beside it"
    for secret in (s3_server.secret_key, source_database.server.password, target_database.server.password):
        for form in (secret, quote(secret, safe="")):
            assert not any(form in text for text in (*seen, ran.out, ran.err))
            assert [str(path) for path, text in kept.items() if form in text] == []

    listed = lockstep("stage", "ls", "shop.yaml", "--files").document
    assert [table["table"] for table in listed["tables"]] == [f"{source_database.name}.orders"]
    assert all(part["path"].startswith("s3://") for part in listed["files"])
    assert lockstep("stage", "verify", "shop.yaml", "--deep").document["ok"] is True
    query = f"SELECT _cdc_op, count(*) FROM {source_database.name}.orders_changes GROUP BY ALL ORDER BY ALL"
    assert lockstep("stage", "sql", "shop.yaml", query).document["rows"] == [["c", 3], ["d", 1], ["r", 3], ["u", 2]]
    exported = lockstep.exported(f"{source_database.name}.orders").select(["order_id", "status", "amount", "at"])
    assert [tuple(row.values()) for row in exported.to_pylist()] == rows


def test_a_wrong_key_is_refused_and_the_right_one_helps(bucket: None, lockstep: Any) -> None:
    right = lockstep.environ["AWS_SECRET_ACCESS_KEY"]
    lockstep.environ["AWS_SECRET_ACCESS_KEY"] = "wr0ng"
    done = lockstep("check", "shop.yaml", code=3)
    failed = [finding for finding in done.document["findings"] if finding["status"] == "fail"]
    assert [finding["code"] for finding in failed] == ["stage.denied"]
    assert "wr0ng" not in done.out + done.err
    assert lockstep("extract", "shop.yaml", code=3).error["code"] == "stage.denied"
    lockstep.environ["AWS_SECRET_ACCESS_KEY"] = right
    lockstep("extract", "shop.yaml")
