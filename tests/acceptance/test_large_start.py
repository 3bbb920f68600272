"""A start on a database that has rows already, in many tables of unlike sizes and keys, while applications write.

LOCKSTEP_START_ROWS sets how many rows there are: 5_000_000 take about 20 minutes on two cores.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql

ROWS = int(os.environ.get("LOCKSTEP_START_ROWS", "40000"))
TABLES = 20
KEYS = (
    ("id BIGINT AUTO_INCREMENT PRIMARY KEY", "{n}"),
    ("id BIGINT UNSIGNED PRIMARY KEY", "{n} * {n} * 3"),  # sparse: the gaps grow
    ("id VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY", "LEFT(SHA2({n}, 256), 40)"),
    ("shop INT, id INT, PRIMARY KEY (shop, id)", "{n} MOD 7, {n}"),
    ("id BINARY(8) PRIMARY KEY", "UNHEX(LPAD(HEX({n}), 16, '0'))"),
)
VALUES = "customer INT, amount DECIMAL(12,2), note VARCHAR(400), changed DATETIME(6)"


def rows_of(number: int) -> int:
    """Of a table: the first has as many as all others together."""
    return ROWS // 2 if number == 0 else max(10, ROWS // 2 * number // sum(range(TABLES)))


def filled(server: Any) -> None:
    """Numbers 0 to 99,999 are a table of another database; rows grow longer with their key in every third table."""
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE DATABASE numbers")
        cursor.execute("CREATE TABLE numbers.n (n INT PRIMARY KEY)")
        digits = " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10))
        powers = " + ".join(f"{10**at} * d{at}.d" for at in range(5))
        cursor.execute(
            f"INSERT INTO numbers.n SELECT {powers} FROM " + ", ".join(f"({digits}) d{at}" for at in range(5))
        )
    for number in range(TABLES):
        count, (key, value) = rows_of(number), KEYS[number % len(KEYS)]
        server.run(f"CREATE TABLE t{number:02} ({VALUES}, {key})")
        names = "shop, id" if "shop" in key else "id"
        for low in range(0, count, 100_000):
            n = f"({low} + n + 1)"
            length = f"20 + 300 * {n} DIV {count}" if number % 3 == 0 else "60"
            server.run(
                f"INSERT INTO t{number:02} ({names}, customer, amount, note, changed) SELECT {value.format(n=n)}, "
                f"{n} MOD 1000, {n} / 7, RPAD(SHA2({n}, 256), {length}, SHA2(n, 256)), "
                f"'2026-01-01' + INTERVAL {n} SECOND "
                f"FROM numbers.n WHERE n < {min(100_000, count - low)}",
            )


@contextmanager
def writing(server: Any) -> Iterator[list[int]]:
    """Applications that insert, update and delete until the block ends; how many changes each has made."""
    stop, made = threading.Event(), [0, 0]

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with closing(server.connect("shop", autocommit=True)) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                number, n = chance.randrange(TABLES), chance.randrange(1, ROWS)
                table, (key, value) = f"t{number:02}", KEYS[number % len(KEYS)]
                names = "shop, id" if "shop" in key else "id"
                new, old = value.format(n=rows_of(number) + n), value.format(n=n % rows_of(number) + 1)
                cursor.execute(
                    chance.choice(
                        [
                            f"INSERT IGNORE INTO {table} ({names}, customer, amount, note, changed) "
                            f"SELECT {new}, 1, 1, 'new', '2026-02-02'",
                            f"UPDATE {table} SET note = CONCAT('u', LEFT(note, 300)), changed = '2026-03-03' "
                            f"WHERE ({names}) = ({old})",
                            f"DELETE FROM {table} WHERE ({names}) = ({old})",
                        ]
                    )
                )
                made[writer] += cursor.rowcount
                time.sleep(0.002)

    with ThreadPoolExecutor(len(made)) as pool:
        writers = [pool.submit(write, number) for number in range(len(made))]
        try:
            yield made
        finally:
            stop.set()
        for writer in writers:
            writer.result()


@pytest.fixture(params=["mysql9", "mariadb"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A source and an empty target of one kind."""
    start = {"mysql9": MySql.start, "mariadb": MariaDb.start}[request.param]
    options = {"innodb-buffer-pool-size": "64M" if ROWS < 1_000_000 else "1G"}
    with start(server_id=5, options=options) as source, start(server_id=6, options=options) as target:
        yield source, target


@pytest.mark.matrix
@pytest.mark.timeout(600 + ROWS // 1000)
@pytest.mark.spark
def test_a_start_on_an_existing_database_with_applications_at_work_ends_equal(
    servers: tuple[Any, Any], lockstep: Any
) -> None:
    source, target = servers
    filled(source)
    lockstep.init(source, "shop", target)
    took: dict[str, float] = {}

    def timed(name: str, *arguments: object) -> Any:
        began_s = time.monotonic()
        done = lockstep(*arguments)
        took[name] = round(time.monotonic() - began_s, 1)
        print(done.err, name, took[name], file=sys.stderr, flush=True)
        return done

    with writing(source) as made:
        timed("target create", "target", "create", "shop.yaml")
        timed("run", "run", "shop.yaml")
    assert min(made) > 0
    timed("run again", "run", "shop.yaml")
    verified = timed("verify", "verify", "shop.yaml").document
    print(f"{ROWS:,} rows, {sum(made):,} changes meanwhile: {took}", file=sys.stderr)
    assert lockstep("status", "shop.yaml").document["problems"] == []
    assert verified["equal"] is True
