"""`lockstep stage compact` as a user calls it, on a real server's log; killed at random moments."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

QUERIES = (
    'SELECT count(*), sum(n) FROM "{}.orders"',
    'SELECT _cdc_op, count(*), min(_cdc_seq), max(_cdc_seq) FROM "{}.orders_changes" GROUP BY ALL ORDER BY ALL',
)


@pytest.fixture
def staged(source_database: Any, lockstep: Any) -> Any:
    """A pipeline `shop.yaml` with windows of a minute: several batches in one that is closed, and one in the next."""
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, n INT)", "CREATE TABLE items (id INT PRIMARY KEY)"
    )
    lockstep.init(source_database.server, source_database.name)
    file = lockstep.directory / "shop.yaml"
    file.write_text(re.sub(r"(?m)^#? *schedule:.*$", "", file.read_text()) + '\nschedule: "* * * * *"\n')
    lockstep("extract", "shop.yaml")
    if time.time() % 60 > 30:
        next_minute()
    for number in range(6):
        if number == 5:
            next_minute()
        source_database.execute(
            f"INSERT INTO orders VALUES ({number}, {number}), ({number + 100}, 1)",
            f"UPDATE orders SET n = n + 10 WHERE id < {number}",
            f"INSERT INTO items VALUES ({number})",
        )
        lockstep("extract", "shop.yaml")
    return source_database


def next_minute() -> None:
    time.sleep(61 - time.time() % 60)


def answers(lockstep: Any, name: str) -> list[Any]:
    return [lockstep("stage", "sql", "shop.yaml", query.format(name)).document["rows"] for query in QUERIES]


def files_of(lockstep: Any) -> list[Path]:
    stage = Path(lockstep("stage", "ls", "shop.yaml").document["stage"].removeprefix("file://"))
    return sorted((stage / "changes").rglob("*.parquet"))


@pytest.mark.matrix
def test_a_window_becomes_a_file_per_table_and_every_answer_stays(staged: Any, lockstep: Any) -> None:
    before, files = answers(lockstep, staged.name), files_of(lockstep)
    compact = ("stage", "compact", "shop.yaml", "--by", "window")
    (shown,) = lockstep(*compact, "--dry-run").document["ranges"]
    assert files_of(lockstep) == files
    (done,) = lockstep(*compact).document["ranges"]
    assert (shown["batches"], shown["files_before"]) == (done["batches"], done["files_before"])
    assert (done["files_before"], done["files"]) == (len(files) - 2, 2), "all but those of the window that is open"
    assert answers(lockstep, staged.name) == before
    lockstep("stage", "verify", "shop.yaml", "--deep")
    assert lockstep(*compact).document["ranges"] == []
    time.sleep(1.5)

    (removed,) = lockstep(*compact, "--remove-originals", "--older-than", "1s").document["removed"]
    assert removed["files"] == done["files_before"]
    assert len(files_of(lockstep)) == 2
    assert answers(lockstep, staged.name) == before
    lockstep("stage", "verify", "shop.yaml", "--deep")
    lockstep("extract", "shop.yaml")


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_targets_exports_and_replays_are_as_before_when_the_originals_are_gone(
    source_database: Any, target_database: Any, lockstep: Any
) -> None:
    """Between two verifications, with a reverse query of old changes."""
    name = source_database.name
    table = "CREATE TABLE orders (id INT PRIMARY KEY, n INT)"
    source_database.execute(table)
    target_database.execute(table)
    lockstep.init(source_database.server, name, target_database.server)
    file = lockstep.directory / "shop.yaml"
    text = re.sub(r"(?m)^#? *schedule:.*$", "", file.read_text())
    file.write_text(text + '\nschedule: "* * * * *"\nreverse_query: {older_than: 1s}\n')
    lockstep("extract", "shop.yaml")
    if time.time() % 60 > 20:
        next_minute()
    for number in range(4):
        source_database.execute(
            f"INSERT INTO orders VALUES ({number}, {number}), ({number + 100}, 1)",
            f"UPDATE orders SET n = n + 10 WHERE id < {number}",
        )
        lockstep("extract", "shop.yaml")
        if number == 1:
            moment = datetime.now(UTC).isoformat()
            time.sleep(1.1)  # commit times may be whole seconds
    lockstep("run", "shop.yaml")
    assert lockstep("verify", "shop.yaml").document["equal"] is True
    next_minute()
    source_database.execute("UPDATE orders SET n = n + 1 WHERE id > 100", "DELETE FROM orders WHERE id = 2")
    lockstep("extract", "shop.yaml")
    exported = [lockstep.directory / f"{at}.parquet" for at in ("before", "after")]
    as_of = ("stage", "export", "shop.yaml", f"{name}.orders", "--as-of", moment, "-o")
    lockstep(*as_of, exported[0])
    compact = ("stage", "compact", "shop.yaml", "--by", "window", "--remove-originals", "--older-than", "1s")
    assert len(lockstep(*compact).document["ranges"]) == 1
    time.sleep(1.1)
    assert lockstep(*compact).document["removed"][0]["files"] > 1
    lockstep(*as_of, exported[1])
    assert pq.read_table(exported[0]).num_rows > 0
    assert pq.read_table(exported[1]).equals(pq.read_table(exported[0]))
    lockstep("run", "shop.yaml")
    assert lockstep("verify", "shop.yaml").document["equal"] is True
    rows = target_database.execute("SELECT * FROM orders ORDER BY id")
    target_database.execute("TRUNCATE TABLE orders")
    for (one,) in target_database.execute("SHOW TABLES LIKE '\\_lockstep\\_%'"):
        target_database.execute(f"DROP TABLE `{one}`")
    ran = lockstep("run", "shop.yaml", "--replay", "--target", "shop")
    assert [entry["problems"] for entry in ran.document["ledgers"]] == [[]]
    assert target_database.execute("SELECT * FROM orders ORDER BY id") == rows
    assert [row[:2] for row in rows] == source_database.execute("SELECT * FROM orders ORDER BY id")


@pytest.mark.matrix
def test_a_compaction_may_be_killed_at_any_moment(staged: Any, lockstep: Any) -> None:
    before, chance = answers(lockstep, staged.name), random.Random(7)
    compact = ("stage", "compact", "shop.yaml", "--by", "window", "--remove-originals", "--older-than", "1s")

    def started(patience_s: float | None) -> int:
        """Its exit code. patience_s: when it is killed."""
        process = subprocess.Popen(
            lockstep.command(*compact, "--json"), cwd=lockstep.directory, env=lockstep.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience_s)
        process.send_signal(signal.SIGKILL)
        return process.wait()

    def ended(patience_s: float | None) -> int:
        """Of the first that is not refused, because a killed one has the turn for a minute."""
        while (code := started(patience_s)) == 75:
            time.sleep(1)
        return code

    codes = []
    while codes.count(-signal.SIGKILL) < 4 and 0 not in codes:
        codes.append(ended(0.5 + 1.5 * chance.random()))
        assert codes[-1] in (0, -signal.SIGKILL)
        assert answers(lockstep, staged.name) == before
    assert -signal.SIGKILL in codes
    for _ in range(2):
        assert ended(None) == 0
        time.sleep(1.1)
    lockstep("stage", "verify", "shop.yaml", "--deep")
    assert answers(lockstep, staged.name) == before
    assert len(files_of(lockstep)) == 2, "those of the window that is open"
