"""Copies that are read at a replica, beside writers at the primary, while the replica lags, stops and goes on."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc_core.config import ThrottleOptions
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater
from cdc_core.meta import TableCopy
from cdc_core.operations.check import check
from cdc_core.operations.copy import copier, pace, throttle, watermarks
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.pending import PendingTable, pending
from cdc_core.operations.copy.steps import read_tables, stage_read
from tests.integration.beside import beside
from tests.integration.replicated import Pair, run, start, write
from tests.lab.lab import Lab
from tests.lab.origin import Origin

PER_TABLE = 300
MARIADB = ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)]
MYSQL = ["mysql", pytest.param("mariadb", marks=pytest.mark.matrix)]


class Standby(Lab):
    """A pipeline on the primary that copies from the replica."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        super().__init__(
            folder,
            Origin(pair.primary, pair.name),
            source="connection: env:A, copy_from: env:B, start: latest",
            tables="on_unlogged_change: resync",
            snapshot="readers: 2, chunk_mib: 1",
        )
        self.environ = {"A": pair.primary.url, "B": pair.replica.url}

    def drain(self) -> None:
        self.extract()

    def copy(self, *tables: str) -> dict[str, Refused]:
        """Reads what is pending, or these tables, and stages it."""
        wanted = pending(self.meta, "shop")
        if tables:
            wanted = tuple(one for one in wanted if one.name.partition(".")[2] in tables)
        assert wanted
        refused = self.read(wanted)
        self.drain()
        with copier_lease(self.opened, "shop") as lease:
            stage_read(self.opened, "shop", lease)
        return refused

    def read(self, wanted: tuple[PendingTable, ...]) -> dict[str, Refused]:
        with copier_lease(self.opened, "shop") as lease:
            return read_tables(self.opened, "shop", wanted, lease)

    def staged(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self.state(table, "id", "v"))

    def said(self) -> tuple[str, str]:
        """What `check` says of the replica."""
        report = check(self.pipeline, environ=self.environ)
        (found,) = [one for one in report.findings if "copies read at" in one.subject]
        return found.status, found.what

    def fails(self, kind: type[LockstepError]) -> LockstepError:
        with pytest.raises(kind) as caught:
            self.read(pending(self.meta, "shop"))
        return caught.value


@pytest.fixture(params=["mariadb", "mysql"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = start(request, request.param)
    try:
        made.replicate()
        run(made.primary, f"CREATE DATABASE {made.name}")
        run(made.primary, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=made.name)
        write(made.primary, made.name, 1, PER_TABLE)
        made.caught_up()
        yield made
    finally:
        made.close()


@pytest.fixture
def line(pair: Pair, tmp_path: Path) -> Iterator[Standby]:
    with Standby(tmp_path, pair) as line:
        yield line


def at(server: Any, pair: Pair, table: str = "t") -> list[tuple[Any, ...]]:
    return sorted(run(server, f"SELECT id, v FROM {table}", database=pair.name))


def unlogged(pair: Pair, statement: str) -> None:
    """A statement at the replica that no log has."""
    run(pair.replica, "SET sql_log_bin = 0", statement, database=pair.name)


def test_a_copy_reads_the_replica_and_what_has_no_key_at_the_source(pair: Pair, line: Standby) -> None:
    run(pair.primary, "CREATE TABLE bare (id INT, v INT)", "INSERT INTO bare VALUES (1, 1), (1, 1)", database=pair.name)
    line.drain()
    pair.caught_up()
    assert line.said() == ("ok", "a replica without filters or rows of its own")
    unlogged(
        pair, "UPDATE t SET v = -5 WHERE id = 9"
    )  # what only a verification would find, and here shows what was read
    unlogged(pair, "DELETE FROM bare")
    assert line.copy() == {}
    assert line.staged("t") == at(pair.replica, pair) != at(pair.primary, pair)
    assert line.staged("bare") == [(1, 1), (1, 1)]


@pytest.mark.parametrize("pair", MYSQL, indirect=True)
def test_writers_at_the_primary_and_a_replica_that_stops_and_goes_on_end_equal(pair: Pair, line: Standby) -> None:
    chance = random.Random(7)
    word = "SLAVE" if pair.flavor == "mariadb" else "REPLICA"
    following = iter(range(PER_TABLE + 1, 1 << 30, 5))

    def lag() -> None:
        run(pair.replica, f"STOP {word} SQL_THREAD")
        time.sleep(chance.random() / 5)
        run(pair.replica, f"START {word} SQL_THREAD")
        time.sleep(chance.random() / 10)

    def change() -> None:
        write(pair.primary, pair.name, next(following), 5)
        run(pair.primary, f"UPDATE t SET v = v - 1 WHERE id < {chance.randrange(PER_TABLE)}", database=pair.name)

    line.drain()
    for attempt in range(3):
        with beside(change, lag):
            line.drain()
            line.copy("t")
        line.drain()
        assert line.staged("t") == at(pair.primary, pair), attempt
        run(pair.primary, "RENAME TABLE t TO u, u TO t", database=pair.name)  # copied again


@pytest.mark.parametrize("pair", MARIADB, indirect=True)
def test_a_replica_that_is_not_the_source_s_equal_is_refused(
    pair: Pair, line: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.drain()
    word = "SLAVE" if pair.flavor == "mariadb" else "REPLICA"
    monkeypatch.setattr(watermarks, "VISIBLE_WITHIN_S", 0.5)
    run(pair.replica, f"STOP {word}")
    write(pair.primary, pair.name, PER_TABLE + 1, 3)
    assert line.fails(RetryLater).code == "source.standby_behind"

    if pair.flavor == "mariadb":
        run(pair.replica, f"SET GLOBAL replicate_ignore_table = '{pair.name}.u'")
    else:
        run(pair.replica, f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({pair.name}.u)")
    error = line.fails(Refused)
    assert (error.code, f"={pair.name}.u" in error.what.lower()) == ("snapshot.standby", True)
    if pair.flavor == "mariadb":
        run(pair.replica, "SET GLOBAL replicate_ignore_table = ''", "SET GLOBAL slave_exec_mode = IDEMPOTENT")
    else:
        run(pair.replica, "CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ()",
            "SET GLOBAL replica_exec_mode = IDEMPOTENT")  # fmt: skip
    assert "IDEMPOTENT" in line.fails(Refused).what
    run(pair.replica, f"SET GLOBAL {word}_exec_mode = STRICT", f"START {word}")
    pair.caught_up()

    unlogged(pair, "ALTER TABLE t ADD COLUMN w INT")
    error = line.fails(RetryLater)
    assert (error.code, "differently than the source" in error.what) == ("source.standby_behind", True)
    unlogged(pair, "ALTER TABLE t DROP COLUMN w")

    run(pair.replica, "INSERT INTO t VALUES (-1, -1)", database=pair.name)
    assert line.fails(DataAtRisk).code == "snapshot.standby_diverged"
    pair.promote()
    assert "not a replica" in line.fails(Refused).what
    status, what = line.said()
    assert (status, "not a replica" in what) == ("fail", True)
    line.environ["B"] = line.environ["A"]  # the replica that was named is the primary now
    assert line.copy() == {}
    assert line.staged("t") == at(pair.primary, pair)


@pytest.mark.parametrize("pair", MYSQL, indirect=True)
def test_what_the_replica_wrote_while_a_chunk_was_read_drops_the_chunk(
    pair: Pair, line: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.drain()
    from cdc_core.operations.copy import copier

    done: list[int] = []

    def begun(*arguments: Any, **more: Any) -> Any:
        if not done:
            done.append(1)
            run(pair.replica, "INSERT INTO t VALUES (-1, -1)", database=pair.name)
        return standby_view(*arguments, **more)

    standby_view = copier.standby_view
    monkeypatch.setattr(copier, "standby_view", begun)
    assert line.fails(DataAtRisk).code == "snapshot.standby_diverged"
    assert all(one.rows == 0 for one in line.meta.copies.find("shop"))


@pytest.mark.parametrize("pair", MARIADB, indirect=True)
def test_a_chunk_is_not_read_before_the_replica_has_what_is_staged(
    pair: Pair, line: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fell behind after it was found fit: its rows are older than `low`, and the log does not bring them again."""
    line.drain()
    from cdc_core.operations.copy import copier

    word = "SLAVE" if pair.flavor == "mariadb" else "REPLICA"

    def found(*arguments: Any, **more: Any) -> Any:
        fit = find_standby(*arguments, **more)
        run(pair.replica, f"STOP {word} SQL_THREAD")
        run(pair.primary, "UPDATE t SET v = -7 WHERE id < 9", database=pair.name)
        line.drain()
        return fit

    find_standby = copier.find_standby
    with monkeypatch.context() as patch:
        patch.setattr(watermarks, "VISIBLE_WITHIN_S", 0.5)
        patch.setattr(copier, "find_standby", found)
        assert line.fails(RetryLater).code == "source.standby_behind"
    run(pair.replica, f"START {word} SQL_THREAD")
    assert line.copy() == {}
    assert line.staged("t") == at(pair.primary, pair)


SEMI_SYNC = {
    "mysql": ("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'", "rpl_semi_sync_source"),
    "mariadb": ("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'", "rpl_semi_sync_master"),
}


def test_a_replica_that_executed_what_its_semi_synchronous_source_has_only_logged_is_no_stranger(
    pair: Pair, line: Standby
) -> None:
    """The source waits for a second replica, which does not come; the first one is ahead of the source's engine."""
    line.drain()
    prepare, switch = SEMI_SYNC[pair.flavor]
    run(pair.primary, prepare, f"SET GLOBAL {switch}_timeout = 600000", f"SET GLOBAL {switch}_enabled = ON")
    waiting = threading.Thread(target=run, args=(pair.primary, "UPDATE t SET v = -3 WHERE id = 9"),
                               kwargs={"database": pair.name})  # fmt: skip
    waiting.start()
    try:
        while (9, -3) not in at(pair.replica, pair):
            time.sleep(0.02)
        assert (9, -3) not in at(pair.primary, pair)
        assert line.said() == ("ok", "a replica without filters or rows of its own")
    finally:
        run(pair.primary, f"SET GLOBAL {switch}_enabled = OFF")
        waiting.join()
    assert line.copy() == {}
    assert line.staged("t") == at(pair.primary, pair)


@pytest.mark.parametrize("pair", MYSQL, indirect=True)
def test_a_copy_waits_for_a_replica_that_lags_or_has_stopped_and_check_says_what_is_missing(
    pair: Pair, line: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "CHECK_S", 0.0)
    monkeypatch.setattr(pace, "chunk_rows", lambda size_bytes, row_bytes: 50)
    monkeypatch.setattr(copier, "WAIT_S", 0.01)
    word = "SLAVE" if pair.flavor == "mariadb" else "REPLICA"
    source = line.pipeline.sources[0].model_copy(update={"copy_from": None})
    limits = ThrottleOptions.model_validate({"replicas": ["env:B"], "replica_lag_s": 0.5, "history_list_length": 10**9})
    snapshot = line.pipeline.snapshot.model_copy(update={"throttle": limits, "readers": 1})
    line.pipeline = line.pipeline.model_copy(update={"snapshot": snapshot, "sources": (source,)})
    line.drain()
    waited: list[str] = []

    def progressed(copy: TableCopy) -> None:
        waited.append(copy.waiting)
        if len(waited) == 1:  # the first chunk is read
            run(pair.replica, f"STOP {word} SQL_THREAD")
        elif "stopped" in copy.waiting:
            run(pair.replica, f"START {word} SQL_THREAD")

    with copier_lease(line.opened, "shop") as lease:
        read_tables(line.opened, "shop", pending(line.meta, "shop"), lease, progressed)
    assert "replication of env:B has stopped" in waited
    run(pair.replica, f"STOP {word}")
    delay = "MASTER TO MASTER_DELAY" if pair.flavor == "mariadb" else "REPLICATION SOURCE TO SOURCE_DELAY"
    run(pair.replica, f"CHANGE {delay} = 600", f"START {word}")
    write(pair.primary, pair.name, 1000, 1)
    with throttle.Throttle(limits, line.environ, source="shop", mariadb=pair.flavor == "mariadb") as asked:
        ask = asked.questions()["replicas, env:B"]
        with closing(pair.primary.connect()) as control:
            while "lags" not in (why := ask(control)):
                time.sleep(0.05)
    assert why.endswith("more than 0.5 s")

    for server in (pair.primary, pair.replica):
        run(server, "SET sql_log_bin = 0", "CREATE USER poor@'%' IDENTIFIED BY 'p'", "GRANT SELECT ON *.* TO poor@'%'")
    poor = {name: re.sub("//.*@", "//poor:p@", url) for name, url in line.environ.items()}
    found = {
        one.subject.partition("throttle, ")[2]: one
        for one in check(line.pipeline, environ=poor).findings
        if "throttle" in one.subject
    }
    assert found["replicas, env:B"].status == "fail"
    assert ("REPLICA MONITOR" if pair.flavor == "mariadb" else "REPLICATION CLIENT") in found["replicas, env:B"].remedy
    history = found["history_list_length"]
    if pair.flavor == "mariadb":  # any account may ask
        assert (history.status, history.what) == ("ok", "within its limit")
    else:
        assert (history.status, "GRANT PROCESS" in history.remedy) == ("fail", True)
