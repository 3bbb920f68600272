"""`lockstep stage compact` as a user calls it, on a real server's log; killed at random moments."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

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
    lockstep.environ["SHOP"] = source_database.server.url
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{source_database.name}\..*")
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
def test_a_compaction_may_be_killed_at_any_moment(staged: Any, lockstep: Any) -> None:
    before, chance = answers(lockstep, staged.name), random.Random(7)
    arguments = (
        "stage",
        "compact",
        "shop.yaml",
        "--by",
        "window",
        "--remove-originals",
        "--older-than",
        "0s",
        "--json",
    )
    killed = 0
    for _ in range(12):
        process = subprocess.Popen(
            lockstep.command(*arguments), cwd=lockstep.directory, env=lockstep.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.5 + 1.5 * chance.random())
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert answers(lockstep, staged.name) == before
    assert killed
    time.sleep(1.5)
    lockstep("stage", "compact", "shop.yaml", "--by", "window", "--remove-originals", "--older-than", "1s")
    lockstep("stage", "verify", "shop.yaml", "--deep")
    assert answers(lockstep, staged.name) == before
