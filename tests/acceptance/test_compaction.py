"""`lockstep stage compact` as a user calls it, on a real server's log."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
import pytest


def next_minute() -> None:
    time.sleep(61 - time.time() % 60)


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
    for (bookkeeping,) in target_database.execute("SHOW TABLES LIKE '\\_lockstep\\_%'"):
        target_database.execute(f"DROP TABLE `{bookkeeping}`")
    ran = lockstep("run", "shop.yaml", "--replay", "--target", "shop")
    assert [entry["problems"] for entry in ran.document["ledgers"]] == [[]]
    assert target_database.execute("SELECT * FROM orders ORDER BY id") == rows
    assert [row[:2] for row in rows] == source_database.execute("SELECT * FROM orders ORDER BY id")
