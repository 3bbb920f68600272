"""kill -9 at random moments of copies beside a mixed workload that also changes rows without row events: what is staged
in the end is what each table of the source holds.

An extractor follows the source all the time, and copies are made again and again by several readers; now one of the
two is killed, now the other, and sweeps run beside them.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.apply.retention import sweep
from cdc_core.config import Pipeline, load
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest
from cdc_core.snapshot.pending import pending
from cdc_core.stage import manifest as manifests
from cdc_core.stage.files import FileStore
from cdc_core.stage.layout import SNAPSHOT
from cdc_core.stage.reader import table_state
from cdc_core.stage.stores import open_store
from tests.crash.processes import Processes
from tests.crash.test_random_kills import TABLES, busy, database, succeed
from tests.forked_commands import ForkedCommands

MANY = int(os.environ.get("LOCKSTEP_KILLS", "50"))
SEED = os.environ.get("LOCKSTEP_SEED", "")
"""Of one run of the long tests: several short runs of different seeds are as good as a long one."""
PARTED = (
    "(id INT PRIMARY KEY, v INT, filler VARCHAR(6000)) "
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
ROWS = {
    "plain": "SELECT seq, 'old', seq / 7, NOW(6), 'raw' FROM numbers WHERE seq < 400",
    "twin": "SELECT seq % 50, seq, 'old' FROM numbers WHERE seq < 1000",
    "no_key": "SELECT seq % 5, 'old' FROM numbers WHERE seq < 200",
    "large": "SELECT seq, REPEAT('o', 300) FROM numbers",
    "parted": "SELECT seq, 0, REPEAT('p', 6000) FROM numbers WHERE seq < 600",
}
"""Several chunks each for `large` and `parted`, of the least size that a pipeline may set."""
PIPELINE = """\
pipeline: kills
sources: [{{name: kills, connection: "env:SOURCE", server_id: 5079, start: latest, heartbeat_s: 1}}]
tables: {{include: ['kills\\.({tables})'], on_unlogged_change: resync}}
routes: [{{match: 'kills\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
snapshot: {{readers: 3, chunk_mib: 1}}
limits: {{lease_s: 5, batch_rows: 500, batch_age_s: 1, ring_mib: 1}}
"""


def change_unlogged(cursor: pymysql.cursors.Cursor, chance: random.Random, number: int) -> None:
    """Rows change, and the log does not carry them."""
    swap = (
        "CREATE TABLE plain_next LIKE plain",
        "INSERT INTO plain_next SELECT * FROM plain WHERE id % 3",
        "RENAME TABLE plain TO plain_former, plain_next TO plain",
        "DROP TABLE plain_former",
    )
    kinds = (
        ("ALTER TABLE parted TRUNCATE PARTITION p0",),
        ("ALTER TABLE parted TRUNCATE PARTITION p1",),
        (f"ALTER TABLE twin ADD COLUMN more{number} INT NOT NULL DEFAULT 5",),
        ("TRUNCATE TABLE no_key",),
        swap,
    )
    for statement in chance.choice(kinds):
        cursor.execute(statement)
    first = chance.randrange(600)
    cursor.execute(
        "REPLACE INTO parted SELECT seq, %s, REPEAT('q', 6000) FROM numbers WHERE seq BETWEEN %s AND %s",
        (number, first, first + 150),
    )


def sweep_all(pipeline: Pipeline, *, leftovers: bool) -> None:
    """Removes what ended attempts left, however young. leftovers: unfinished files too, while nothing writes any."""
    with Meta.open(pipeline.meta.url) as meta, pytest.MonkeyPatch.context() as patch:
        if not leftovers:
            patch.setattr(FileStore, "leftovers", lambda _: iter(()))
        sweep(meta, open_store(pipeline.stage.uri), pipeline, older_than_s=-60.0)


def settle(lockstep: Any, pipeline: Pipeline) -> None:
    """Quiet. A copy may go on from chunks that were read before rows changed unlogged: the next one counts then."""
    for _ in range(2):
        lockstep("snapshot", "kills.yaml")
        with Meta.open(pipeline.meta.url) as meta:
            if not pending(meta, "kills"):
                break
    lockstep("extract", "kills.yaml", "--until", "now")
    with Meta.open(pipeline.meta.url) as meta:
        assert pending(meta, "kills") == ()
        assert (meta.chunks("kills"), meta.copies("kills"), meta.decided_copied("kills")) == ((), (), ())


def chain_of(pipeline: Pipeline) -> list[Manifest]:
    return list(manifests.chain(open_store(pipeline.stage.uri), "kills"))


def staged_equals_source(pipeline: Pipeline, cursor: pymysql.cursors.Cursor) -> None:
    store, batches = open_store(pipeline.stage.uri), chain_of(pipeline)
    for table in ROWS:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        held = Counter(cursor.fetchall())
        state = table_state(store, batches, table).select(names)
        found = Counter(tuple(row.values()) for row in state.to_pylist())
        assert found == held, (table, list((found - held).items())[:3], list((held - found).items())[:3])


def known(pipeline: Pipeline) -> tuple[Any, ...]:
    """What meta knows of the chain."""
    with Meta.open(pipeline.meta.url) as meta:
        reached = meta.checkpoint("kills")
        assert reached is not None
        return meta.batches("kills"), (reached.position, reached.gtid_set), dict(meta.coverage("kills").tables)


@pytest.mark.parametrize(
    ("kills", "server"),
    [
        pytest.param(3, "mariadb", marks=pytest.mark.crash_sample),
        pytest.param(MANY, "mysql9", marks=pytest.mark.matrix),
        pytest.param(MANY, "mariadb", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_at_random_moments_of_copies_and_of_unlogged_changes_end_equal_to_the_source(
    server: str, kills: int, commands: ForkedCommands, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(server)
    chance = random.Random(f"{kills} {SEED}")
    environ = {**os.environ, "SOURCE": source.url}
    lockstep = partial(succeed, commands, tmp_path, environ)
    with database(source) as cursor:
        cursor.execute("CREATE TABLE numbers (seq INT PRIMARY KEY)")
        cursor.executemany("INSERT INTO numbers VALUES (%s)", range(8000))
        for table, columns in {**TABLES, "parted": PARTED}.items():
            cursor.execute(f"CREATE TABLE {table} {columns}")
            cursor.execute(f"INSERT INTO {table} {ROWS[table]}")
        (tmp_path / "kills.yaml").write_text(PIPELINE.format(folder=tmp_path, tables="|".join(ROWS)))
        pipeline = load(tmp_path / "kills.yaml")
        lockstep("extract", "kills.yaml")  # begins here
        processes = Processes(commands, tmp_path, environ, {"extract": set(), "snapshot": {0, 75}})
        with busy(source, range(3)), closing(processes):
            done = changes = 0
            while done < kills:
                processes.start("extract", "--follow", "kills.yaml")
                processes.start("snapshot", "kills.yaml", *chance.choice(((), ("--all",))))
                if chance.random() < 0.4:
                    changes += 1
                    change_unlogged(cursor, chance, changes)
                time.sleep(chance.choice((0.3, 1, 2)) * chance.random())
                for kind in chance.choice((("snapshot",), ("snapshot",), ("extract",), ("extract", "snapshot"))):
                    done += processes.kill(kind)
                if chance.random() < 0.3:
                    sweep_all(pipeline, leftovers=False)
        settle(lockstep, pipeline)
        lockstep("stage", "verify", "kills.yaml", "--deep")
        staged_equals_source(pipeline, cursor)

        sweep_all(pipeline, leftovers=True)
        listed = {part.path for one in chain_of(pipeline) for part in one.parts if part.path.startswith(SNAPSHOT)}
        assert {info.path for info in open_store(pipeline.stage.uri).list(SNAPSHOT)} == listed

        before = known(pipeline)
        (tmp_path / "meta.db").unlink()
        lockstep("meta", "rebuild", "kills.yaml")
        assert known(pipeline) == before
        lockstep("snapshot", "kills.yaml", "--all")  # names and numbers of files do not come again
        settle(lockstep, pipeline)
        staged_equals_source(pipeline, cursor)
        numbers = [chunk.number for one in chain_of(pipeline) for chunk in one.chunks]
        assert len(numbers) == len(set(numbers))
