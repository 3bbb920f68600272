"""What a real source refuses, loses or hides: each a clear error of the right class, and nothing handed on by it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from cdc_core.config import StartConfig, StartPosition
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, UsageError
from cdc_core.model.position import Checkpoint, Position
from cdc_core.mysql import connections
from cdc_core.source.host import source_server as server
from cdc_core.source.host.server_facts import binlog_files, gtid_executed
from cdc_core.source.host.table_survey import find_tables
from cdc_core.source.transactions.source_stream import SourceStream
from cdc_core.source.wire import replica_identity as server_id
from cdc_core.source.wire.replica_identity import replica_host
from examples.sandbox.mysql import MySql
from tests.lab.origin import Origin, account, ids_in, read_to
from tests.lab.waiting import wait_until

E = TypeVar("E", bound=LockstepError)


@pytest.fixture
def origin(origin: Origin) -> Origin:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    return origin


def read_once(stream: SourceStream) -> None:
    """One look at the connection, whatever comes: the server has begun to send then."""
    answers = iter([False, True])
    list(stream.blocks(lambda: next(answers)))


def error_of(kind: type[E], code: str, call: Callable[[], Any]) -> E:
    with pytest.raises(kind) as raised:
        call()
    assert raised.value.code == code, raised.value
    assert raised.value.remedy
    return raised.value


def test_a_wrong_password_is_refused_and_not_shown(origin: Origin) -> None:
    wrong = origin.address(password="not-the-password")
    error = error_of(Refused, "connection.denied", lambda: origin.drain(origin.end(), address=wrong))
    assert "not-the-password" not in str(error)


def test_each_missing_grant_is_named_by_the_check_and_refused_by_the_stream(origin: Origin) -> None:
    monitor = "BINLOG MONITOR" if origin.mariadb else "REPLICATION CLIENT"
    needed = {"REPLICATION SLAVE", monitor, "SELECT"}
    for missing in sorted(needed):
        with account(origin, *(needed - {missing})) as address:
            asked = connections.connect(address, where="test")
            error = error_of(
                Refused,
                "connection.grant",
                lambda asked=asked: server.require_all(server.facts(asked), origin.source()),
            )
            assert missing in error.what
            for other in needed - {missing}:
                assert other not in error.what
            if missing == "REPLICATION SLAVE":
                start = origin.end()
                error_of(
                    Refused,
                    "connection.grant",
                    lambda: origin.drain(start, address=address),  # noqa: B023
                )
            asked.close()
    # The source of a way back is a server of the target, so the refusal names the account and not a role.
    with account(origin, "SELECT") as address:
        asked = connections.connect(address, where="test")
        error = error_of(Refused, "connection.grant", lambda: server.end_position(asked, 0))
        assert error.where == f"{address.user}@{address.host}:{address.port}"
        asked.close()
    with account(origin, *needed) as address:
        asked = connections.connect(address, where="test")
        server.require_all(server.facts(asked), origin.source())
        assert origin.drain(origin.end(), address=address) == []
        asked.close()


def test_a_server_that_hangs_is_noticed(origin: Origin) -> None:
    pid = origin.sql.pid
    assert pid is not None
    with origin.stream(origin.end(), heartbeat_s=0.2, read_timeout_s=1, reconnect_s=0) as stream:
        began_s = time.monotonic()
        assert list(stream.blocks(lambda: time.monotonic() > began_s + 1.2)) == [], "heartbeats keep it alive"
        os.kill(pid, signal.SIGSTOP)
        try:
            error = error_of(RetryLater, "connection.unreachable", lambda: list(stream.blocks(lambda: False)))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert "heartbeat" in error.what


def test_another_replica_with_our_server_id_ends_the_stream_as_refused_or_to_be_retried(origin: Origin) -> None:
    with origin.stream(origin.end(), reconnect_s=0) as stream:
        read_once(stream)
        with origin.stream(origin.end()) as usurper:
            read_once(usurper)
            with pytest.raises((Refused, RetryLater)) as raised:
                list(stream.blocks(lambda: False))
    assert raised.value.code in ("source.server_id_taken", "connection.unreachable")


def test_a_server_id_that_another_replica_or_the_server_has_is_refused_and_our_own_is_not(origin: Origin) -> None:
    known = server.facts(origin.control)
    own = origin.source().model_copy(update={"server_id": known.server_id})
    error_of(Refused, "source.server_id_taken", lambda: server.require_free_server_id(known, own))
    with origin.stream(origin.end()) as stream:
        read_once(stream)
        known = server.facts(origin.control)
        assert [replica.server_id for replica in known.replicas] == [origin.server_id]
        server.require_free_server_id(known.without_replica("lockstep-origin"), origin.source())
        for other in ("lockstep-another", ""):
            facts = known.without_replica(other)
            with pytest.raises(Refused, match=str(origin.server_id)):
                server.require_free_server_id(facts, origin.source())


def test_a_newcomer_with_the_server_id_of_a_running_stream_is_refused_and_the_stream_reads_on(origin: Origin) -> None:
    """With the least grants too: on MariaDB they do not show who is registered."""
    monitor = "BINLOG MONITOR" if origin.mariadb else "REPLICATION CLIENT"
    with account(origin, "REPLICATION SLAVE", monitor, "SELECT") as address:
        start = origin.end()
        asked = connections.connect(address, where="test")
        host = replica_host("shop", "origin", "0123456789abcdef")
        with origin.stream(start, address=address, replica_host=host, reconnect_s=0) as stream:
            read_once(stream)
            newcomer = origin.stream(start, address=address, replica_host=replica_host("copy", "origin", "0123"))
            error = error_of(Refused, "source.server_id_taken", newcomer.__enter__)
            assert str(origin.server_id) in error.what
            for stranger in ("", replica_host("copy", "origin", "0123456789abcdef")):
                error_of(
                    Refused, "source.server_id_taken",
                    lambda: server_id.require_unclaimed(asked, origin.server_id, stranger, source="origin"),  # noqa: B023
                )  # fmt: skip
            server_id.require_unclaimed(asked, origin.server_id, host, source="origin")
            origin.execute("INSERT INTO t VALUES (1, 'a')")
            blocks = read_to(stream, origin.end().position)
            assert ids_in(blocks) == [1]
            # The same extractor, started again after it was cut off from the server, takes over.
            with origin.stream(start, address=address, replica_host=host) as successor:
                blocks = read_to(successor, origin.end().position)
                assert ids_in(blocks) == [1]
        until_free(asked, origin.server_id)
        with origin.stream(start, address=address, replica_host="lockstep-later") as later:
            read_once(later)
        asked.close()


def until_free(asked: Any, number: int) -> None:
    """A stream that was left ends when the server next writes to it."""

    def free() -> bool:
        try:
            server_id.require_unclaimed(asked, number, "", source="origin")
        except Refused:
            return False
        return True

    wait_until(free)


def test_of_many_newcomers_at_once_with_one_server_id_one_reads_and_the_others_are_refused(origin: Origin) -> None:
    start, outcomes = origin.end(), []
    together, finished = threading.Barrier(6), threading.Barrier(6)

    def come(number: int) -> None:
        stream = origin.stream(start, replica_host=f"lockstep-{number}", reconnect_s=0)
        together.wait()
        try:
            with stream:
                read_once(stream)
                finished.wait()
                origin.execute(f"INSERT INTO t VALUES ({number}, 'x')")
                read_to(stream, origin.end().position)
                outcomes.append("read")
        except LockstepError as error:
            finished.wait()
            outcomes.append(error.code)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["read", *["source.server_id_taken"] * 5]


def test_what_stops_the_stream_is_named_without_values_and_whole_transactions_before_it_are_handed_on(
    origin: Origin,
) -> None:
    start = origin.end()
    origin.execute("INSERT INTO t VALUES (1, 'a')")
    good = origin.end().position
    with origin.session() as run:
        run("SET SESSION binlog_format = STATEMENT", "UPDATE t SET v = 'x'")
    got = []
    with origin.stream(start) as stream:
        error = error_of(
            DataAtRisk, "source.unlogged_change", lambda: [got.append(b) for b in stream.blocks(lambda: False)]
        )
        assert stream.position == good
    assert ids_in(got) == [1]
    assert f"UPDATE {origin.name}.t" in error.what
    assert "'x'" not in error.what
    assert start.position.file in error.where


def test_a_column_in_the_temporal_form_of_before_mariadb_10_1_is_refused(origin: Origin) -> None:
    if not origin.mariadb:
        return
    origin.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        origin.execute("CREATE TABLE old (id INT PRIMARY KEY, at DATETIME(3))")
    finally:
        origin.execute("SET GLOBAL mysql56_temporal_format = ON")
    start = origin.end()
    origin.execute("INSERT INTO old VALUES (1, '2024-02-29 23:59:59.987')")
    error = error_of(Refused, "source.unsupported_table", lambda: origin.drain(start))
    assert "ALTER TABLE ... FORCE" in error.remedy
    (found_table,) = (table for table in find_tables(origin.control, lambda *name: name == (origin.name, "old")))
    assert (found_table.schema, "datetime(3)" in found_table.problem) == (None, True)
    origin.execute("ALTER TABLE old FORCE")
    assert [table.problem for table in find_tables(origin.control, lambda *name: name == (origin.name, "old"))] == [""]


def test_a_start_inside_a_transaction_stops_instead_of_losing_rows(origin: Origin) -> None:
    file, offset = inside_of_a_transaction(origin)
    inside = Checkpoint(Position(0, file, offset))
    error_of(DataAtRisk, "source.bad_position", lambda: origin.drain(inside))
    start = StartConfig(position=StartPosition(file=file, offset=offset))
    error_of(
        DataAtRisk, "source.bad_position",
        lambda: origin.start(start),
    )  # fmt: skip


def inside_of_a_transaction(origin: Origin) -> tuple[str, int]:
    """Where the table map of a new transaction begins."""
    before = origin.end().position
    origin.execute("INSERT INTO t VALUES (77, 'inside')")
    with origin.session() as run:
        events = run(f"SHOW BINLOG EVENTS IN '{before.file}' FROM {before.offset}")
    return before.file, next(int(row[1]) for row in events if row[2] == "Table_map")


def test_a_position_between_two_events_stops(origin: Origin) -> None:
    origin.execute("INSERT INTO t VALUES (1, 'a')")
    end = origin.end().position
    origin.execute("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(DataAtRisk):
        origin.drain(Checkpoint(Position(0, end.file, end.offset + 5)))


def test_a_start_by_position_gtid_and_time_is_where_it_should_be(origin: Origin) -> None:
    def start(**where: Any) -> Checkpoint:
        return origin.start(StartConfig(**where))

    origin.execute("INSERT INTO t VALUES (1, 'a')")
    time.sleep(1.1)  # MariaDB's log has whole seconds
    here = origin.start("latest")
    moment = server.now_us(origin.control)
    time.sleep(1.1)
    origin.execute("INSERT INTO t VALUES (2, 'b')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'c')")
    for found in (
        start(position=StartPosition(file=here.position.file, offset=here.position.offset)),
        start(gtid=here.gtid_set),
        start(timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment // 1_000_000))),
    ):
        rows = ids_in(origin.drain(found))
        assert rows == [2, 3]
        assert found.gtid_set == here.gtid_set
        assert found.server == here.server == server.facts(origin.control).identity
        assert 0 < found.watermark_us <= moment
    assert start(gtid=gtid_executed(origin.control)).position == origin.end().position
    error_of(UsageError, "config.invalid", lambda: start(timestamp="2300-01-01T00:00:00Z"))


def test_a_start_by_time_has_all_that_was_committed_later_in_that_second(origin: Origin) -> None:
    key = second = flushed = 0
    while not key or flushed != second:  # the heads of files have whole seconds, MariaDB's transactions too
        key += 2
        time.sleep(1.1 - server.now_us(origin.control) % 1_000_000 / 1e6)
        second = server.now_us(origin.control) // 1_000_000
        origin.execute(f"INSERT INTO t VALUES ({key}, 'a')", "FLUSH BINARY LOGS")
        origin.execute(f"INSERT INTO t VALUES ({key + 1}, 'b')")
        flushed = server.now_us(origin.control) // 1_000_000
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    for fraction in ("", ".001"):
        checkpoint = origin.start(StartConfig(timestamp=f"{moment}{fraction}+00:00"))
        assert ids_in(origin.drain(checkpoint)) == [key, key + 1]


def test_earliest_is_the_oldest_file_and_reads_to_the_end(origin: Origin) -> None:
    renamed = not server.facts(origin.control).mariadb and MySql.version() >= (8, 4)
    # What other tests purged would be in the way of the empty GTID set, which asks for the whole history.
    origin.execute("RESET BINARY LOGS AND GTIDS" if renamed else "RESET MASTER", "INSERT INTO t VALUES (1, 'a')")
    origin.execute("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')")
    checkpoint = origin.start("earliest")
    assert checkpoint.position == Position(0, binlog_files(origin.control)[0].name, 4)
    first = origin.start(StartConfig(gtid=""))
    assert first.position.file == checkpoint.position.file
    for start in (checkpoint, first):
        rows = ids_in(origin.drain(start))
        assert rows == [1, 2]


def test_a_looking_for_the_start_does_not_end_a_running_stream(origin: Origin) -> None:
    origin.execute("INSERT INTO t VALUES (1, 'a')")
    start = origin.end()
    with origin.stream(start) as stream:
        read_once(stream)
        origin.start("earliest")
        origin.execute("INSERT INTO t VALUES (2, 'b')")
        blocks = read_to(stream, origin.end().position)
    assert ids_in(blocks) == [2]


@pytest.mark.parametrize(
    ("hours", "said"), [("NULL", "for only 0.0 hours"), ("'5'", "for only 5.0 hours"), ("'72'", "")]
)
@pytest.mark.parametrize("any_server", ["mysql9"], indirect=True)
def test_a_managed_server_keeps_its_log_by_its_own_setting(origin: Origin, hours: str, said: str) -> None:
    origin.execute_on_server("CREATE TABLE mysql.rds_configuration (name VARCHAR(99), value VARCHAR(99))")
    try:
        origin.execute_on_server(f"INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', {hours})")
        advice = server.advise_retention(server.facts(origin.control))
    finally:
        origin.execute_on_server("DROP TABLE mysql.rds_configuration")
    assert (advice.what if advice else "").find(said) >= 0
    assert advice is None if not said else "mysql.rds_set_configuration" in advice.remedy


def test_a_stored_position_of_another_server_is_refused(origin: Origin) -> None:
    stored = Checkpoint(origin.end().position, server="server_id=424242")
    error_of(DataAtRisk, "source.other_log", lambda: origin.start(stored=stored))


def test_a_stored_position_behind_the_end_of_the_log_is_refused(origin: Origin) -> None:
    end = origin.end().position
    number = int(end.file.rpartition(".")[2])
    for position in (Position(0, end.file, end.offset + 1000), Position(0, f"binlog.{number + 5:06d}", 4)):
        stored = Checkpoint(position)
        error_of(DataAtRisk, "source.other_log", lambda stored=stored: origin.start(stored=stored))
        with pytest.raises(DataAtRisk) as raised, origin.stream(stored) as stream:
            list(stream.blocks(lambda: False))
        assert raised.value.code in ("source.other_log", "source.log_lost")


def test_a_start_behind_the_end_of_the_log_is_to_be_corrected_not_given_up(origin: Origin) -> None:
    end = origin.end().position
    start = StartConfig(position=StartPosition(file=end.file, offset=end.offset + 1000))
    error = error_of(DataAtRisk, "source.other_log", lambda: origin.start(start))
    assert ("correct `start`" in error.remedy, "--abandon" in error.remedy) == (True, False)


def test_a_stored_position_of_a_log_that_was_replaced_is_refused(origin: Origin) -> None:
    foreign = "9-1-5" if origin.mariadb else "5f40e5fe-e59e-11f1-88f5-02fcdeadbeef:1-5"
    stored = Checkpoint(origin.end().position, gtid_set=foreign)
    error_of(DataAtRisk, "source.other_log", lambda: origin.start(stored=stored))


def test_a_stored_position_that_is_good_is_taken_as_it_is(origin: Origin) -> None:
    stored = origin.start("latest")
    origin.execute("INSERT INTO t VALUES (1, 'a')")
    assert origin.start("earliest", stored) == stored


def test_a_purged_position_is_refused_with_how_much_is_missing_and_never_started_elsewhere(origin: Origin) -> None:
    stored = origin.start("latest")
    gtid = stored.gtid_set
    origin.execute("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')")
    origin.execute("FLUSH BINARY LOGS")
    newest = origin.end().position.file
    origin.purge_to(newest)
    error = error_of(DataAtRisk, "source.log_lost", lambda: origin.start(stored=stored))
    assert newest in error.what
    error_of(DataAtRisk, "source.log_lost", lambda: origin.drain(stored))
    for start in (
        StartConfig(position=StartPosition(file=stored.position.file, offset=stored.position.offset)),
        StartConfig(gtid=gtid),
        StartConfig(timestamp="2020-01-01T00:00:00Z"),
    ):
        error_of(DataAtRisk, "source.log_lost", lambda start=start: origin.start(start))  # fmt: skip


def test_a_reader_that_waits_long_does_not_hold_up_whoever_asks_it_to_stop(origin: Origin) -> None:
    stopped = threading.Event()
    with origin.stream(origin.end()) as stream:
        reading = threading.Thread(target=lambda: list(stream.blocks(stopped.is_set)))
        reading.start()
        stopped.set()
        reading.join(timeout=20)
        assert not reading.is_alive()
