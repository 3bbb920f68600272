"""kill -9 at random moments of verifications, repairs and runs, beside copies and a mixed workload: in the end source,
stage and target have the same rows, and a verification finds nothing.

Faults are planted in the target, and rows of the source change without being logged, all the time.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.config import Pipeline, load
from tests.crash.processes import Processes
from tests.crash.random_kills import (
    LIMITS,
    MANY,
    ROWS,
    SEED,
    busy,
    change_unlogged,
    database,
    filled,
    settle,
    staged_equals_source,
    succeed,
    sweep_all,
)
from tests.lab import pipeline_file
from tests.lab.forked_commands import ForkedCommands
from tests.lab.pipeline_file import write_pipeline

SHARDS = {
    "plain": ("plain_0", "plain_1"), "twin": ("twin",), "no_key": ("no_key",), "large": ("large_0", "large_1"),
    "parted": ("parted",),
}  # fmt: skip
"""By table of the source, its tables at the target."""
REPAIRED = ("plain", "twin", "large", "parted")
"""Rows of the others have no key by which they could be repaired."""
SHARDING = {"key": "id", "databases": 1, "tables": 2}
RULES: dict[str, dict[str, Any]] = {
    "plain": {"table": "plain_{t}", "sharding": SHARDING}, "twin": {"table": "twin", "on_new_column": "add"},
    "no_key": {"table": "no_key", "no_key": "rows"}, "large": {"table": "large_{t}", "sharding": SHARDING},
    "parted": {"table": "parted"},
}  # fmt: skip
ENDS: Mapping[str, set[int]] = {"extract": set(), "snapshot": {0, 75}, "run": {0, 4, 75}, "verify": {0, 3, 4, 75},
                                "repair": {0, 3, 4, 75}}  # fmt: skip
"""By command, how it may end by itself. A column was added: 3 until the next run adds it at the target, and 4 of a run
whose rows were staged before, until the copy that brings its values is staged."""


def spoil(cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
    """Faults of the target's rows: changed, missing, surplus, and in another shard."""
    first = chance.randrange(400)
    faults = (
        f"UPDATE kills_copy.plain_{{0}} SET name = 'fault' WHERE id BETWEEN {first} AND {first + 20}",
        f"DELETE FROM kills_copy.plain_{{0}} WHERE id BETWEEN {first} AND {first + 20} AND id % 3",
        f"INSERT IGNORE INTO kills_copy.plain_{{0}} (id, name) VALUES ({2000 + first}, 'surplus')",
        f"INSERT IGNORE INTO kills_copy.plain_{{0}} SELECT * FROM kills_copy.plain_{{1}} WHERE id > {first} LIMIT 3",
        f"UPDATE kills_copy.twin SET note = 'fault' WHERE a = {first % 50}",
        f"DELETE FROM kills_copy.twin WHERE a = {first % 50}",
        f"UPDATE kills_copy.large_{{0}} SET filler = 'fault' WHERE id BETWEEN {first * 10} AND {first * 10 + 50}",
        f"UPDATE kills_copy.parted SET v = -1 WHERE id BETWEEN {first} AND {first + 20}",
    )
    for fault in chance.sample(faults, 4):
        shard = chance.randrange(2)
        cursor.execute(fault.format(shard, 1 - shard))


def change_silently(cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
    """Rows of the source change, and nothing tells it: the stage is wrong."""
    first = chance.randrange(400)
    cursor.execute("SET SESSION sql_log_bin = 0")
    cursor.execute(f"UPDATE plain SET name = 'silent' WHERE id BETWEEN {first} AND {first + 5}")
    # The target keeps these: a verification looks into the stage only where source and target differ.
    cursor.execute(f"DELETE FROM plain WHERE id BETWEEN {first + 6} AND {first + 14} AND id % 3 = 0")
    cursor.execute(f"REPLACE INTO plain VALUES ({first + 15}, 'silent', 1, NOW(6), '')")
    cursor.execute(f"UPDATE large SET filler = 'silent' WHERE id = {first * 10}")
    cursor.execute("SET SESSION sql_log_bin = 1")


def patiently(work: Any, *arguments: Any) -> None:
    """Rows that are locked by others are waited for again."""
    while True:
        try:
            work(*arguments)
            return
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1205, 1213):
                raise


@contextmanager
def copy_database(cursor: pymysql.cursors.Cursor) -> Iterator[None]:
    """The target's database, on the source's server."""
    cursor.execute("CREATE DATABASE kills_copy CHARACTER SET utf8mb4")
    try:
        yield
    finally:
        cursor.execute("DROP DATABASE kills_copy")


def copy_equals_source(cursor: pymysql.cursors.Cursor) -> None:
    for table, shards in SHARDS.items():
        cursor.execute(f"SELECT * FROM {table}")
        names = ", ".join(column[0] for column in cursor.description)
        wanted = Counter(cursor.fetchall())
        cursor.execute(" UNION ALL ".join(f"SELECT {names} FROM kills_copy.{shard}" for shard in shards))
        found = Counter(cursor.fetchall())
        assert found == wanted, (table, list((found - wanted).items())[:3], list((wanted - found).items())[:3])
        assert wanted


def repair_all(run: Any, lockstep: Any, pipeline: Pipeline) -> None:
    """Quiet: everything is copied, applied, verified and repaired. A verification that was killed would only continue,
    and not see what was planted where it had been."""
    settle(lockstep, pipeline)
    lockstep("run", "kills.yaml", "--staged")
    verified = run("verify", "kills.yaml", "--restart", "--json")
    assert verified.code in (0, 4), verified
    if verified.code == 4:
        lockstep("repair", "kills.yaml", *REPAIRED)
    lockstep("verify", "kills.yaml", "--restart")


@pytest.mark.matrix
@pytest.mark.parametrize("server", ["mysql9", "mariadb"])
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_kills_at_random_moments_of_repairs_end_equal_to_the_source(
    server: str, commands: ForkedCommands, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(server)
    chance = random.Random(f"{MANY} {SEED}")
    environ = {**os.environ, "SOURCE": source.url}
    lockstep = partial(succeed, commands, tmp_path, environ)
    run = partial(commands.run, directory=tmp_path, environ=environ)
    with database(source) as cursor, copy_database(cursor):
        filled(cursor)
        rules = {table: {"database": "kills_copy", **rule} for table, rule in RULES.items()}
        file = write_pipeline(
            tmp_path,
            "kills",
            pipeline="kills",
            source="name: kills, start: latest",
            tables=rf"include: ['kills\.({'|'.join(ROWS)})'], on_unlogged_change: resync",
            targets=[pipeline_file.target("copy", "env:SOURCE", rules)],
            snapshot="readers: 3, chunk_mib: 1",
            routes=[{"match": rf"kills\.{table}", "to": table} for table in ROWS],
            repair="max_rows_per_day: 1000000",
            spark="driver_rows: 1000000",
            limits=LIMITS,
        )
        pipeline = load(file)
        lockstep("extract", "kills.yaml")
        lockstep("target", "create", "kills.yaml")
        lockstep("snapshot", "kills.yaml")
        lockstep("run", "kills.yaml", "--staged")
        processes = Processes(commands, tmp_path, environ, ENDS)
        with busy(source, range(3), pause_s=0.2), closing(processes):
            done = changes = 0
            steps = itertools.cycle(("find", "repair", "verify", "repair", "repair"))
            while done < MANY:
                processes.start("extract", "--follow", "kills.yaml")
                patiently(spoil, cursor, chance)
                if chance.random() < 0.5:
                    patiently(change_silently, cursor, chance)
                if chance.random() < 0.1:
                    changes += 1
                    patiently(change_unlogged, cursor, chance, changes)
                if chance.random() < 0.3:
                    processes.start("snapshot", "kills.yaml")
                if chance.random() < 0.3:
                    processes.start("run", "kills.yaml", "--staged")
                step = next(steps)
                if step == "find":  # what it finds is left for several repairs: most are killed
                    verified = run("verify", "kills.yaml", "--json")
                    assert verified.code in ENDS["verify"], verified
                    step = "repair"
                processes.start(step, "kills.yaml", *(REPAIRED if step == "repair" else ()))
                time.sleep(chance.choice((1, 5, 20)) * chance.random())
                done += processes.kill(step)
                for other in chance.sample(("extract", "snapshot", "run"), chance.randrange(3)):
                    done += processes.kill(other)
                if chance.random() < 0.3:
                    sweep_all(pipeline, leftovers=False)
        repair_all(run, lockstep, pipeline)
        lockstep("stage", "verify", "kills.yaml", "--deep")
        staged_equals_source(pipeline, cursor)
        copy_equals_source(cursor)
        status = run("status", "kills.yaml", "--json").document
        assert [entry["problems"] for entry in status["ledgers"]] == [[]] * len(status["ledgers"])
