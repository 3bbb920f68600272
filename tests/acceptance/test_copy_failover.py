"""The source fails over while its rows are copied: the primary dies between `low` and `high`, a replica is promoted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cdc_core.meta import TableCopy
from cdc_core.operations.copy import chunks
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.pending import pending
from cdc_core.operations.copy.steps import read_tables, stage_read
from cdc_core.operations.extract import Extractor
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.manifest import chain
from tests.integration.replicated import Pair, start
from tests.lab.staged_tables import table_state

ROWS, CHUNK = 90, 30
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v INT)"


class EndedError(BaseException):
    """What ends the reader after a chunk."""


CASES = [
    ("mysql", False), ("mariadb", True),
    *(pytest.param(*case, marks=pytest.mark.matrix) for case in (
        ("mysql", True), ("mariadb", False), ("mysql without GTIDs", True), ("mysql without GTIDs", False)
    )),
]  # fmt: skip
"""A server, and whether all chunks are read before it fails over; otherwise one is."""


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = start(request, request.param)
    try:
        made.replicate()
        made.primary.run(f"CREATE DATABASE {made.name}")
        values = ", ".join(f"({number}, 0)" for number in range(1, ROWS + 1))
        made.primary.run(TABLE, f"INSERT INTO t VALUES {values}", database=made.name)
        made.caught_up()
        if not made.gtids:
            time.sleep(2)  # rewind_s: reading begins again after the table was created
        yield made
    finally:
        made.close()


def rows(server: Any, pair: Pair) -> list[tuple[Any, ...]]:
    return server.run("SELECT id, v FROM t ORDER BY id", database=pair.name)


def write(lockstep: Any, pair: Pair, target: Any, **rules: dict[str, str]) -> None:
    """A pipeline that reads either server of the pair. rules: of tables of the target."""
    lockstep.environ |= {"A": pair.primary.url, "B": pair.replica.url, "COPY": target.url}
    lockstep.write(
        "shop", pair.name, routes="[]",
        source="connection: [env:A, env:B], start: latest, heartbeat_s: 0.3, read_timeout_s: 2, reconnect_s: 1, "
        "rewind_s: 1",
        tables="on_unlogged_change: resync",
        snapshot="mode: initial, readers: 1, chunk_mib: 1",
        targets=[{"name": "copy", "connections": ["env:COPY"], "tables": {"*": {}, **rules}}],
    )  # fmt: skip


@pytest.mark.parametrize(("pair", "whole"), CASES, indirect=["pair"])
def test_a_chunk_whose_source_fails_over_before_it_is_staged_is_read_again(
    pair: Pair, mariadb_target: Any, lockstep: Any, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    write(lockstep, pair, mariadb_target)
    mariadb_target.run(f"CREATE DATABASE {pair.name}")
    mariadb_target.run(TABLE, database=pair.name)
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: CHUNK)
    with lockstep.opened() as ready:
        store = ready.store
        extract(ready)
        read(ready, whole=whole)
        # After `low` of the chunks that were read; the stage never has the old primary's log up to their `high`.
        pair.primary.run("UPDATE t SET v = 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0",
                         "INSERT INTO t VALUES (1000, 1)", database=pair.name)  # fmt: skip
        pair.caught_up()
        pair.primary.kill()
        pair.promote()
        pair.replica.run("UPDATE t SET v = 2 WHERE id % 5 = 0", database=pair.name)
        extract(ready)
        with copier_lease(ready, "shop") as lease:
            staged = stage_read(ready, "shop", lease)
        assert staged.tables == ()
        assert [why for _, why in staged.dropped] == ["the source has gone to another server's log meanwhile"]
        assert [table.name for table in pending(ready.meta, "shop")] == [f"{pair.name}.t"]
    lockstep("run", "shop.yaml")
    copied = [chunk for batch in chain(store, "shop") for chunk in batch.chunks]
    assert copied
    assert {place.timeline for chunk in copied for place in (chunk.low, chunk.high)} == {1}
    state = table_state(store, list(chain(store, "shop")), f"{pair.name}.t").select(["id", "v"]).to_pylist()
    assert [(row["id"], row["v"]) for row in state] == rows(pair.replica, pair)
    assert rows(mariadb_target, pair) == rows(pair.replica, pair)


@pytest.mark.parametrize("pair", ["mysql without GTIDs"], indirect=True)
def test_changes_without_a_key_that_may_come_again_are_taken_with_a_copy_that_takes_their_place(
    pair: Pair, mariadb_target: Any, lockstep: Any
) -> None:
    write(lockstep, pair, mariadb_target, **{f"{pair.name}.bare": {"no_key": "rows"}})
    bare = "CREATE TABLE bare (n INT)"
    mariadb_target.run(f"CREATE DATABASE {pair.name}")
    mariadb_target.run(TABLE, bare, database=pair.name)
    pair.primary.run(bare, "INSERT INTO bare VALUES (1), (2)", database=pair.name)
    lockstep("run", "shop.yaml")
    pair.primary.run("INSERT INTO bare VALUES (2), (3)", database=pair.name)
    lockstep("extract", "shop.yaml")
    pair.caught_up()
    pair.primary.kill()
    pair.promote()
    pair.replica.run("INSERT INTO bare VALUES (4)", "DELETE FROM bare WHERE n = 1", database=pair.name)
    assert lockstep("run", "shop.yaml", code=3).error["code"] == "stage.partial"
    assert lockstep("run", "shop.yaml", code=3).error["code"] == "stage.partial"
    lockstep("snapshot", "shop.yaml", f"{pair.name}.bare")
    pair.replica.run("INSERT INTO bare VALUES (5)", database=pair.name)
    lockstep("run", "shop.yaml")
    query = "SELECT n FROM bare ORDER BY n"
    assert mariadb_target.run(query, database=pair.name) == [(2,), (2,), (3,), (4,), (5,)]
    assert lockstep("verify", "shop.yaml").document["equal"]


def extract(ready: OpenPipeline) -> None:
    with Extractor(ready, "shop") as extractor:
        assert extractor.drain().done


def read(ready: OpenPipeline, *, whole: bool) -> None:
    """Reads the table's chunks, or only the first one."""

    def progressed(_: TableCopy) -> None:
        if not whole:
            raise EndedError

    with copier_lease(ready, "shop") as lease, nullcontext() if whole else pytest.raises(EndedError):
        read_tables(ready, "shop", pending(ready.meta, "shop"), lease, progressed)
    (copy,) = ready.meta.copies.find("shop")
    assert copy.rows == ROWS if whole else 0 < copy.rows < ROWS
