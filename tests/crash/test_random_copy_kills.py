"""kill -9 at random moments of copies beside a mixed workload that also changes rows without row events: what is staged
in the end is what each table of the source holds.

An extractor follows the source all the time, and copies are made again and again by several readers; now one of the
two is killed, now the other, and sweeps run beside them.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdc_core.config import Pipeline, load
from cdc_core.meta import Meta
from cdc_core.stage.layout import SNAPSHOT
from cdc_core.stage.stores import open_store
from tests.crash.processes import Processes
from tests.crash.random_kills import (
    LIMITS,
    MANY,
    ROWS,
    SEED,
    busy,
    chain_of,
    change_unlogged,
    database,
    filled,
    settle,
    staged_equals_source,
    succeed,
    sweep_all,
)
from tests.lab.forked_commands import ForkedCommands
from tests.lab.pipeline_file import write_pipeline


def known(pipeline: Pipeline) -> tuple[Any, ...]:
    """What meta knows of the chain."""
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        reached = meta.positions.checkpoint("kills")
        assert reached is not None
        return (
            meta.batches.find("kills"),
            (reached.position, reached.gtid_set),
            dict(meta.coverages.find("kills").tables),
        )


@pytest.mark.parametrize(
    ("kills", "server"),
    [
        pytest.param(3, "mariadb", marks=pytest.mark.crash_sample),
        pytest.param(MANY, "mysql9", marks=pytest.mark.matrix),
        pytest.param(MANY, "mariadb", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.timeout(1800)
def test_kills_at_random_moments_of_copies_and_of_unlogged_changes_end_equal_to_the_source(
    server: str, kills: int, commands: ForkedCommands, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(server)
    chance = random.Random(f"{kills} {SEED}")
    environ = {**os.environ, "SOURCE": source.url}
    lockstep = partial(succeed, commands, tmp_path, environ)
    with database(source) as cursor:
        filled(cursor)
        file = write_pipeline(
            tmp_path,
            "kills",
            pipeline="kills",
            source="name: kills, start: latest",
            tables=rf"include: ['kills\.({'|'.join(ROWS)})'], on_unlogged_change: resync",
            snapshot="readers: 3, chunk_mib: 1",
            limits=LIMITS,
        )
        pipeline = load(file)
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
        listed = {
            part.path for manifest in chain_of(pipeline) for part in manifest.parts if part.path.startswith(SNAPSHOT)
        }
        assert {info.path for info in open_store(pipeline.stage.uri).list(SNAPSHOT)} == listed

        before = known(pipeline)
        (tmp_path / "meta.db").unlink()
        lockstep("meta", "rebuild", "kills.yaml")
        assert known(pipeline) == before
        cursor.execute("FLUSH BINARY LOGS")  # of a table without a key, two copies cannot be of one place
        lockstep("snapshot", "kills.yaml", "--all")  # names and numbers of files do not come again
        settle(lockstep, pipeline)
        staged_equals_source(pipeline, cursor)
        numbers = [chunk.number for manifest in chain_of(pipeline) for chunk in manifest.chunks]
        assert len(numbers) == len(set(numbers))
