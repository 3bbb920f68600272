"""Is it still the log that was read? Another one is refused before a row of it is staged, and our own is read on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.meta import Meta
from cdc_core.model.block import EntryKind
from cdc_core.model.position import FIRST_OFFSET, Checkpoint, seq_of_name
from cdc_core.operations.extract import Extractor
from cdc_core.source.host.server_facts import gtid_executed
from cdc_core.source.wire.log_reader import LogReader
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.lab.databases import fresh_name
from tests.lab.lab import Lab
from tests.lab.origin import Origin, read_to
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes
from tests.lab.tcp_proxy import TcpProxy

KINDS = ["mariadb", "mysql without GTIDs", pytest.param("mysql", marks=pytest.mark.matrix)]
WITHOUT_GTIDS = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}


def started(kind: str, directory: Path | None = None, *, server_id: int = 1) -> SqlServer:
    if kind == "mariadb":
        return MariaDb.start(directory, server_id=server_id)
    options = WITHOUT_GTIDS if kind.endswith("without GTIDs") else {}
    return MySql.start(directory, server_id=server_id, options=options)


@dataclass
class Log:
    """A server whose log tests may throw away, and a database of one test."""

    kind: str
    sql: SqlServer
    name: str = ""

    def run(self, *statements: str, database: bool = True) -> list[tuple[Any, ...]]:
        return self.sql.run(*statements, database=self.name if database else None)

    def create(self) -> None:
        self.run(f"CREATE DATABASE {self.name}", database=False)
        self.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")

    def insert(self, *ids: int, text: str = "x") -> None:
        """A transaction each."""
        self.run(*(f"INSERT INTO t VALUES ({number}, '{text}')" for number in ids))

    def reset(self) -> None:
        """Its log begins again, and so do its rows: by the same statements, whose events have the same sizes."""
        word = "RESET MASTER" if self.kind == "mariadb" else "RESET BINARY LOGS AND GTIDS"
        self.run(f"DROP DATABASE IF EXISTS {self.name}", word, database=False)
        self.create()

    def ids(self) -> list[int]:
        return [row[0] for row in self.run("SELECT id FROM t ORDER BY id")]

    def files(self) -> list[str]:
        return [row[0] for row in self.run("SHOW BINARY LOGS", database=False)]

    def end_streams(self) -> None:
        """What a refused extractor has left: the server itself would notice at its next write."""
        streams = "SELECT ID FROM INFORMATION_SCHEMA.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
        while left := self.run(streams, database=False):
            for (number,) in left:
                with suppress(pymysql.err.MySQLError):
                    self.run(f"KILL {number}", database=False)
            time.sleep(0.05)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param != "mariadb":
        request.getfixturevalue("mysql9")
    with started(request.param) as sql:
        yield Log(request.param, sql)


@pytest.fixture
def log(server: Log) -> Iterator[Log]:
    """As if the server had just been set up."""
    server.name = fresh_name()
    server.reset()
    yield server
    server.run(f"DROP DATABASE {server.name}", database=False)


class Moved(Lab):
    """A pipeline of one source, whose server can be another one at each drain."""

    def __init__(self, folder: Path, log: Log, start: str = "earliest") -> None:
        source = f"start: {start}, heartbeat_s: 0.3, read_timeout_s: 5, reconnect_s: 60"
        super().__init__(folder, log, source=source)

    def extractor(self, sql: SqlServer, *, port: int = 0, **options: Any) -> Extractor:
        self.environ["SOURCE"] = sql.url.replace(f":{sql.port}", f":{port or sql.port}")
        return super().extractor(**options)

    def drain(self, sql: SqlServer) -> None:
        with self.extractor(sql) as extractor:
            assert extractor.drain().done

    def assert_refuses(self, sql: SqlServer) -> DataAtRisk:
        """Nothing moves, however often it is tried."""
        before, staged = self.checkpoint, self.ids()
        for _ in range(2):
            with raises(DataAtRisk, "source.other_log") as caught:
                self.drain(sql)
            assert (self.checkpoint, self.ids()) == (before, staged)
        return caught.value


@pytest.fixture
def line(log: Log, tmp_path: Path) -> Iterator[Moved]:
    with Moved(tmp_path, log) as line:
        yield line


@pytest.mark.parametrize(
    ("ids", "text"), [((5, 6, 7), "x"), ((5, 6, 7), "another size"), ((5, 6, 7), "y" * 70_000), ((5, 6), "x")],
    ids=["more rows", "another size", "large rows", "the same size and nothing left to read"],
)  # fmt: skip
def test_a_log_that_was_reset_is_refused_whatever_the_sizes_of_its_events(
    log: Log, line: Moved, ids: tuple[int, ...], text: str
) -> None:
    log.insert(1, 2)
    line.drain(log.sql)
    log.reset()
    log.insert(*ids, text=text)
    error = line.assert_refuses(log.sql)
    assert "max_allowed_packet" not in error.remedy
    assert "--abandon binlog.000001:" in error.remedy
    assert line.ids() == [1, 2]


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_source_that_was_idle_since_reading_began_is_known_again(log: Log, tmp_path: Path, start: str) -> None:
    with Moved(tmp_path, log, start) as line:
        line.drain(log.sql)
        line.drain(log.sql)
        time.sleep(1.1)  # a log says when it was begun in whole seconds
        log.reset()
        log.insert(*range(10, 30))
        line.assert_refuses(log.sql)


@pytest.mark.parametrize("alive", [False, True])
def test_a_stream_that_connects_again_refuses_a_log_that_was_reset_meanwhile(
    log: Log, line: Moved, alive: bool
) -> None:
    log.insert(1, 2)
    with TcpProxy(log.sql.port) as proxy, line.extractor(log.sql, port=proxy.port) as extractor:
        extractor.drain()
        proxy.refuse(not alive)
        if not alive:
            proxy.cut()
        log.reset()
        log.insert(*range(5, 25))
        proxy.refuse(False)
        with pytest.raises(DataAtRisk) as caught:
            extractor.drain(until_us=1 << 60)
    assert caught.value.code in ("source.other_log", "source.log_lost")
    assert line.ids() == [1, 2]


def restarted(log: Log) -> None:
    log.sql.stop()
    log.sql.restart()


def crashed(log: Log) -> None:
    log.sql.kill()
    log.sql.restart()


def crashed_inside_a_transaction(log: Log) -> None:
    with log.sql.connect(log.name) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (999999, 'never committed')")
        log.sql.kill()
    log.sql.restart()


def rotated(log: Log) -> None:
    log.run("FLUSH BINARY LOGS")


def purged(log: Log) -> None:
    log.run("FLUSH BINARY LOGS", f"PURGE BINARY LOGS TO '{log.files()[-1]}'")


def without_checksums(log: Log) -> None:
    log.run("SET GLOBAL binlog_checksum = NONE")


def with_checksums(log: Log) -> None:
    log.run("SET GLOBAL binlog_checksum = CRC32")


def renamed_version(log: Log) -> None:
    """What may change about a server without changing its log."""
    log.run("SET GLOBAL server_id = 77", "INSERT INTO t VALUES (77, '')", "SET GLOBAL server_id = 1")


def compressed(log: Log) -> None:
    if log.kind == "mariadb":
        log.run("SET GLOBAL log_bin_compress = ON")
        log.insert(2000, text="z" * 100_000)
        log.run("SET GLOBAL log_bin_compress = OFF")
    else:
        log.run("SET binlog_transaction_compression = ON", f"INSERT INTO t VALUES (2000, '{'z' * 100_000}')")


def large(log: Log) -> None:
    """Events of more than one packet of the protocol."""
    log.insert(3000, text="w" * (17 << 20))


def in_pieces(log: Log) -> None:
    log.run("BEGIN", *(f"INSERT INTO t VALUES ({number}, '{'p' * 50_000}')" for number in range(4000, 4020)), "COMMIT")


def rolled_back(log: Log) -> None:
    log.run("BEGIN", "INSERT INTO t VALUES (5000, 'x')", "ROLLBACK", "XA START 'a'", "INSERT INTO t VALUES (5001, 'x')",
            "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'")  # fmt: skip


def defined(log: Log) -> None:
    log.run("CREATE TABLE u (i INT)", "ALTER TABLE u ADD j INT", "DROP TABLE u", "CREATE TABLE w (i INT)")


HARMLESS: tuple[Callable[[Log], None], ...] = (
    restarted, crashed, rotated, purged, crashed_inside_a_transaction, without_checksums, rotated, restarted, large,
    with_checksums, crashed, renamed_version, compressed, in_pieces, rolled_back, defined,
)  # fmt: skip


def test_the_same_log_is_read_on_after_whatever_happens_to_a_server(log: Log, line: Moved) -> None:
    for number, happens in enumerate(HARMLESS):
        log.insert(2 * number)
        line.drain(log.sql)
        log.insert(2 * number + 1)
        happens(log)  # after rows that were not read
        line.drain(log.sql)
        if number < 4:  # they need no rows
            happens(log)
            line.drain(log.sql)
        assert line.ids() == log.ids(), happens.__name__


def test_meta_rebuilt_from_the_manifests_still_refuses_another_log(log: Log, line: Moved, tmp_path: Path) -> None:
    log.insert(1, 2)
    line.drain(log.sql)
    known = line.checkpoint
    assert known.fingerprint is not None
    assert known.fingerprint.traced
    with Meta.open(f"sqlite:///{tmp_path}/other.db", "shop") as rebuilt:
        lease = rebuilt.leases.acquire("shop", "test", ttl_s=60)
        rebuilt.rebuild(lease, line.chain)
        found = rebuilt.positions.checkpoint("shop")
        assert found is not None
        assert found.fingerprint == known.fingerprint


# Positions that fall between two files


def blocks_up_to_a_file(log: Log, origin: Origin) -> Checkpoint:
    """A checkpoint at the first byte of a file, after which the server has logged nothing of ours."""
    start = origin.start("earliest")
    log.run("FLUSH BINARY LOGS")
    with origin.stream(start) as stream:
        for block in stream.blocks(lambda: False):
            start = replace(start, position=block.end, fingerprint=block.fingerprint(start.fingerprint))
            if block.end.offset == FIRST_OFFSET and block.end.file == log.files()[-1]:
                return start
    raise AssertionError("no rotation")


def test_a_position_between_two_files_is_proven_by_the_end_of_the_first_or_by_gtids(log: Log) -> None:
    origin = Origin(log.sql, log.name)
    with closing(origin.control):
        log.insert(1, 2)
        between = replace(blocks_up_to_a_file(log, origin), gtid_set=gtid_executed(origin.control))
        assert bool(between.gtid_set) == (log.kind != "mysql without GTIDs")
        assert between.fingerprint is not None
        assert between.fingerprint.file != between.position.file
        log.insert(3)
        assert sum(block.entries.rows.sum() for block in origin.drain(between)) == 1
        origin.purge_to(between.position.file)
        if between.gtid_set:
            assert sum(block.entries.rows.sum() for block in origin.drain(between)) == 1
        refused = [between] if not between.gtid_set else []
        refused.append(replace(between, gtid_set=""))
        for checkpoint in refused:
            with raises(DataAtRisk, "source.other_log", match="is purged, so that it cannot be compared"):
                origin.drain(checkpoint)
        for purge in (False, True):
            log.reset()
            log.insert(7, 8, 9)
            log.run("FLUSH BINARY LOGS")
            log.insert(10)
            assert between.position.file in log.files()
            if purge:
                log.run(f"PURGE BINARY LOGS TO '{between.position.file}'")
            with raises(DataAtRisk, "source.other_log"):
                origin.drain(between)


def test_each_end_of_a_block_is_a_place_to_resume_from(log: Log) -> None:
    """Whatever the last event before it was: a commit, a rotation, DDL, a file's first events."""
    origin = Origin(log.sql, log.name)
    with closing(origin.control):
        start = origin.start("earliest")
        for happens in (rotated, rolled_back, defined, compressed, restarted, without_checksums, with_checksums):
            log.insert(10 + HARMLESS.index(happens))
            happens(log)
            origin.control.ping(reconnect=True)
        end = origin.end().position
        with origin.stream(start, block_bytes=1) as stream:
            blocks = read_to(stream, end)
        fingerprint = start.fingerprint
        assert len(blocks) > 20
        for block in blocks:
            if block.entries.kind[-1] == EntryKind.PART:
                continue
            fingerprint = block.fingerprint(fingerprint)
            assert fingerprint is not None
            with closing(LogReader(origin.address(), block.end, origin.source(), known=fingerprint)) as reader:
                assert reader.framer.proven
            for other in (
                replace(fingerprint, crc=fingerprint.crc ^ 1),
                replace(fingerprint, format_crc=fingerprint.format_crc ^ 1),
            ):
                if other.traced:
                    with pytest.raises(DataAtRisk, match="not the one that was read before"):
                        LogReader(origin.address(), block.end, origin.source(), known=other)


# Another server


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_servers_with_one_past_the_one_that_was_not_read_is_refused_behind_their_fork(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A restored backup, or a clone: the same identity, file names, offsets and sizes, and other rows."""
    if kind != "mariadb":
        request.getfixturevalue("mysql9")
    with ExitStack() as opened:
        first = Log(kind, opened.enter_context(started(kind, tmp_path / "a")), "shared")
        first.create()
        first.insert(1, 2)
        before, line = (
            opened.enter_context(Moved(folder, first)) for folder in (tmp_path / "before", tmp_path / "after")
        )
        before.drain(first.sql)
        line.drain(first.sql)
        first.sql.stop()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        second = Log(kind, opened.enter_context(started(kind, tmp_path / "b")), "shared")
        first.sql.restart()
        first.insert(3, 4)
        second.insert(7, 8, 9)
        line.drain(first.sql)
        assert line.ids() == [1, 2, 3, 4]
        line.assert_refuses(second.sql)
        second.end_streams()
        before.drain(second.sql)
        assert before.ids() == [1, 2, 7, 8, 9]
        first.insert(5)
        line.drain(first.sql)
        assert line.ids() == [1, 2, 3, 4, 5]


def test_file_numbers_above_twenty_bits_run_on_and_the_next_timeline_is_later_than_all_of_them(
    log: Log, line: Moved
) -> None:
    """A table that is made again is another one, on whichever side of the limit each of the two was made."""
    limit, word = 1 << 20, "RESET MASTER TO" if log.kind == "mariadb" else "RESET BINARY LOGS AND GTIDS TO"
    log.run(f"DROP DATABASE {log.name}", f"{word} {limit - 2}", database=False)
    log.create()
    for number in range(4):
        log.insert(*range(number * 10, number * 10 + 5))
        line.drain(log.sql)
        log.run(f"DELETE FROM t WHERE id = {number * 10}", "FLUSH BINARY LOGS")
    line.drain(log.sql)
    assert line.ids() == log.ids() == [id for n in range(0, 40, 10) for id in range(n + 1, n + 5)]
    log.run("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    log.insert(7)
    with pytest.raises(DataAtRisk, match="the rows of an earlier table of that name are still staged"):
        line.drain(log.sql)
    before = line.checkpoint.position
    assert (before.timeline, before.number >= limit + 2) == (0, True)
    batches = line.chain
    places = [batch.begin.position for batch in batches]
    assert sorted(places, key=lambda place: place.name) == sorted(places) == places
    assert [seq_of_name(place.name) for place in places] == [place.seq for place in places]

    log.run(word.removesuffix(" TO"))
    with line.extractor(log.sql, abandon=(before.file, before.offset)) as extractor:
        extractor.drain()
    log.run("DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (8, 'x')")
    line.drain(log.sql)
    after = line.checkpoint.position
    assert (after.timeline, after.number, after > before) == (2, 1, True)
    history = changes(line.store, line.chain, "t").sort_by([("_cdc_seq", "ascending")])
    assert history.select(["id", "_cdc_op"]).to_pylist()[-2:] == [{"id": 7, "_cdc_op": "d"}, {"id": 8, "_cdc_op": "c"}]
