"""A primary and its replica, both real: the primary dies, the replica is promoted, and the extract goes on there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.mysql.connections import connect, parse_url
from cdc_core.operations.check import check
from cdc_core.operations.verify.source_rows import open_source
from cdc_core.source.host.server_facts import query
from examples.sandbox.sql_server import SqlServer
from tests.integration.replicated import Pair, write
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes, table_state
from tests.lab.tcp_proxy import TcpProxy
from tests.lab.waiting import wait_until


@pytest.fixture(params=["mariadb", "mysql", "mysql without GTIDs"])
def pair(request: pytest.FixtureRequest, pairs: Callable[[str], Pair]) -> Pair:
    pair = pairs(request.param)
    pair.begin()
    if not pair.gtids:
        time.sleep(2)  # the logs must be older than rewind_s, for a place by time to be in them
    return pair


class FailedOver(Lab):
    """A pipeline whose source is the pair."""

    def __init__(self, folder: Path, pair: Pair, servers: str = "[env:A, env:B]") -> None:
        source = (
            f"connection: {servers}, start: earliest, heartbeat_s: 0.3, read_timeout_s: 2, reconnect_s: 1, rewind_s: 1"
        )
        super().__init__(folder, Origin(pair.primary, pair.name), source=source, limits="lease_s: 10")
        self.environ = {"A": pair.primary.url, "B": pair.replica.url}

    def drain(self) -> None:
        self.extract()

    def assert_equals(self, server: SqlServer) -> None:
        self.assert_intact()
        wanted = server.run("SELECT id, v FROM t ORDER BY id", database=self.origin.name)
        assert self.state("t", "id", "v") == wanted


@pytest.fixture
def line(pair: Pair, tmp_path: Path) -> Iterator[FailedOver]:
    with FailedOver(tmp_path, pair) as line:
        yield line


def test_the_extract_goes_on_at_the_promoted_replica_and_equals_it(pair: Pair, line: FailedOver) -> None:
    write(pair.primary, pair.name, 1, 40)
    line.drain()
    with line.extractor() as extractor:
        write(pair.primary, pair.name, 41, 40)
        assert extractor.drain().done
        pair.caught_up()
        write(pair.primary, pair.name, 81, 10)
        pair.caught_up()
        pair.primary.kill()
        pair.promote()
        write(pair.replica, pair.name, 91, 40)
        result = extractor.drain()
        assert result.done
        assert result.position.timeline == 1
    line.assert_equals(pair.replica)
    (note,) = line.notes
    assert ("by GTID, without overlap" if pair.gtids else "may come again") in note
    (bridge,) = [batch for batch in line.chain if batch.notes]
    assert (bridge.again_until > bridge.end.position.seq) is not pair.gtids
    write(pair.replica, pair.name, 131, 10)
    line.drain()
    line.assert_equals(pair.replica)
    assert len(line.notes) == 1


def continued(pair: Pair, line: FailedOver) -> None:
    """The primary dies after its rows 1 to 6, and more come to the promoted replica."""
    pair.primary.kill()
    pair.promote()
    write(pair.replica, pair.name, 7, 3)
    line.drain()
    line.assert_equals(pair.replica)


def come_again(line: FailedOver, table: str) -> dict[int, int]:
    """Order keys of inserted rows that were staged before, at the other server, by their ids."""
    rows = changes(line.store, line.chain, table).to_pylist()
    inserted = [(row["id"], row["_cdc_seq"]) for row in rows if row["_cdc_op"] == "c"]
    first = dict(reversed(inserted))
    return {number: seq for number, seq in inserted if seq != first[number]}


def again_until(line: FailedOver) -> int:
    (bridge,) = [batch for batch in line.chain if batch.notes]
    return bridge.again_until


@pytest.mark.parametrize("pair", ["mariadb", "mysql"], indirect=True)
def test_what_a_standby_has_logged_in_another_order_is_known_to_come_again(pair: Pair, line: FailedOver) -> None:
    """As it does where it applies transactions in parallel: those of a domain, or that do not touch the same rows."""
    mariadb = pair.flavor == "mariadb"
    pair.primary.run("CREATE TABLE slow (id INT PRIMARY KEY)", database=pair.name)
    words = ("SLAVE", "slave_parallel_threads = 4") if mariadb else ("REPLICA", "replica_preserve_commit_order = OFF")
    pair.replica.run(f"STOP {words[0]}", f"SET GLOBAL {words[1]}", f"START {words[0]}")
    write(pair.primary, pair.name, 1, 3)
    pair.caught_up()  # a replica applies nothing in parallel before its first transaction
    with pair.replica.connect(pair.name) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES slow READ")
        domain = ("SET SESSION gtid_domain_id = 1",) if mariadb else ()
        pair.primary.run(*domain, "INSERT INTO slow VALUES (1)", database=pair.name)
        line.drain()
        write(pair.primary, pair.name, 4, 3)
        pair.caught_up()
    wait_until(lambda: pair.replica.run("SELECT * FROM slow", database=pair.name))
    continued(pair, line)
    again = come_again(line, "slow")
    assert again.keys() == {1}
    assert again[1] < again_until(line)
    assert "1 transaction read before will come again" in line.notes[0]


@pytest.mark.parametrize("pair", ["mysql without GTIDs"], indirect=True)
def test_what_a_standby_has_applied_late_is_known_to_come_again(pair: Pair, line: FailedOver) -> None:
    write(pair.primary, pair.name, 1, 3)
    pair.caught_up()
    pair.replica.run("STOP REPLICA SQL_THREAD")
    write(pair.primary, pair.name, 4, 3)
    line.drain()
    time.sleep(3)  # more than rewind_s
    pair.replica.run("START REPLICA SQL_THREAD")
    pair.caught_up()
    continued(pair, line)
    again = come_again(line, "t")
    assert again.keys() >= {4, 5, 6}
    assert max(again.values()) < again_until(line)


def _require_waiting_after_the_end_of_the_primary(pair: Pair, line: FailedOver) -> None:
    """What the primary had is read; the replica has received it, and something keeps it from applying it."""
    line.drain()
    time.sleep(1)  # the replica's relay log has it
    pair.primary.kill()
    with raises(RetryLater, "source.standby_behind"):
        line.drain()


@pytest.mark.parametrize("pair", ["mysql without GTIDs"], indirect=True)
def test_without_gtids_a_standby_is_waited_for_that_may_still_apply_what_was_read(pair: Pair, line: FailedOver) -> None:
    pair.primary.run("CREATE TABLE bare (n INT)", database=pair.name)
    write(pair.primary, pair.name, 1, 3)
    pair.caught_up()
    with pair.replica.connect(pair.name) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES bare READ, t READ")
        pair.primary.run("INSERT INTO bare VALUES (1), (2)", database=pair.name)
        _require_waiting_after_the_end_of_the_primary(pair, line)
        # Nor while it is not promoted, though it has applied all: the primary may come back, and send more.
    wait_until(lambda: pair.replica.run("SELECT * FROM bare", database=pair.name))
    with pytest.raises(RetryLater):
        line.drain()
    pair.promote()
    pair.replica.run("INSERT INTO bare VALUES (3)", database=pair.name)
    line.drain()
    line.assert_equals(pair.replica)
    with pytest.raises(Refused) as refused:
        table_state(line.store, line.chain, "bare")
    assert (refused.value.code, "may be staged twice" in refused.value.what) == ("stage.partial", True)


@pytest.mark.parametrize("pair", ["mariadb", "mysql"], indirect=True)
def test_a_new_primary_that_lacks_what_was_read_stops_with_the_list(pair: Pair, line: FailedOver) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    pair.promote()
    write(pair.primary, pair.name, 11, 5)
    line.drain()
    before = line.meta.positions.checkpoint("shop")
    pair.primary.kill()
    for count in (0, 10):
        # As many transactions of its own have the same numbers on MariaDB.
        write(pair.replica, pair.name, 1000, count)
        with raises(DataAtRisk, "source.other_log") as caught:
            line.drain()
    assert before is not None
    assert ("0-71-" in caught.value.what) if pair.flavor == "mariadb" else (before.server in caught.value.what)
    assert line.meta.positions.checkpoint("shop") == before


@pytest.mark.parametrize("pair", ["mariadb"], indirect=True)
def test_a_standby_that_is_behind_is_waited_for(pair: Pair, line: FailedOver) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    with pair.replica.connect(pair.name) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM t FOR UPDATE")
        write(pair.primary, pair.name, 11, 3)
        _require_waiting_after_the_end_of_the_primary(pair, line)

    def caught_up() -> bool:
        with suppress(RetryLater):
            line.drain()
            return True
        return False

    wait_until(caught_up)
    line.assert_equals(pair.replica)


@pytest.mark.parametrize("pair", ["mariadb", "mysql"], indirect=True)
def test_a_write_at_the_standby_that_the_primary_never_had_is_read_after_the_failover(
    pair: Pair, line: FailedOver
) -> None:
    """Without gtid_strict_mode, MariaDB gives it a number that a transaction of the primary gets, too."""
    write(pair.primary, pair.name, 1, 3)
    pair.caught_up()
    line.drain()
    pair.replica.run("INSERT INTO t VALUES (1001, 1)", "FLUSH BINARY LOGS", database=pair.name)
    pair.primary.run("INSERT INTO t VALUES (2000, 1)", "INSERT INTO t VALUES (2001, 1)", database=pair.name)
    pair.caught_up()
    line.drain()
    pair.primary.kill()
    pair.promote()
    write(pair.replica, pair.name, 4, 3)
    line.drain()
    line.assert_equals(pair.replica)


@pytest.mark.parametrize("pair", ["mariadb"], indirect=True)
def test_while_the_server_that_is_read_lives_another_one_is_not_tried(
    pair: Pair, line: FailedOver, tmp_path: Path
) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    line.drain()
    write(pair.primary, pair.name, 11, 10)
    with ExitStack() as opened:
        opened.enter_context(FailedOver(tmp_path, pair, "[env:B, env:A]")).drain()
    assert line.notes == []
    line.assert_equals(pair.primary)


@pytest.mark.parametrize("pair", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)], indirect=True)
def test_several_servers_behind_one_address_are_refused_and_a_failover_behind_it_is_followed(
    pair: Pair, tmp_path: Path
) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    with ExitStack() as opened:
        proxy = opened.enter_context(TcpProxy(pair.primary.port))
        line = opened.enter_context(FailedOver(tmp_path, pair, "env:A"))
        line.environ["A"] = pair.primary.url.replace(f":{pair.primary.port}", f":{proxy.port}")
        for _ in range(2):  # before anything was read, and after it
            proxy.lead_to(pair.primary.port, pair.replica.port)
            for _ in range(2):
                with raises(Refused, "source.several_servers"):
                    line.drain()
                proxy.lead_to(pair.replica.port, pair.primary.port)
            proxy.lead_to(pair.primary.port)
            line.drain()
        proxy.lead_to(pair.primary.port, pair.replica.port)
        with raises(Refused, "source.several_servers"), open_source(line.opened, "shop"):
            pass  # a verification reads by it
        proxy.lead_to(pair.primary.port)
        staged = line.meta.positions.checkpoint("shop")
        assert staged is not None
        pinned = replace(parse_url(line.environ["A"], where="test"), identity=staged.server)
        with closing(connect(pinned, where="shop")) as session:
            proxy.lead_to(pair.replica.port)
            proxy.cut()
            with raises(RetryLater, "source.other_server"):
                query(session, "SELECT 1")
        line.drain()
        line.assert_equals(pair.replica)


@pytest.mark.parametrize("pair", ["mysql without GTIDs"], indirect=True)
def test_without_gtids_a_server_that_is_not_listed_is_refused(pair: Pair, line: FailedOver, tmp_path: Path) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    line.drain()
    with ExitStack() as opened:
        alone = opened.enter_context(FailedOver(tmp_path, pair, "env:B"))
        with pytest.raises(DataAtRisk) as caught:
            alone.drain()
    assert caught.value.code == "source.other_log"


@pytest.mark.parametrize("pair", ["mariadb"], indirect=True)
def test_a_seeded_standby_whose_log_begins_behind_what_was_read_is_refused(pair: Pair, line: FailedOver) -> None:
    write(pair.primary, pair.name, 1, 10)
    line.drain()
    write(pair.primary, pair.name, 11, 10)
    pair.caught_up()
    pair.promote()
    rest = pair.executed(pair.replica)
    pair.replica.run("RESET MASTER", f"SET GLOBAL gtid_slave_pos = '{rest}'")
    write(pair.replica, pair.name, 21, 5)
    pair.primary.kill()
    with pytest.raises(DataAtRisk) as caught:
        line.drain()
    assert caught.value.code in ("source.other_log", "source.log_lost")


@pytest.mark.parametrize("pair", ["mariadb"], indirect=True)
def test_check_says_where_another_server_would_go_on(
    pair: Pair, line: FailedOver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pair.primary, pair.name, 1, 10)
    pair.caught_up()
    line.drain()
    monkeypatch.setenv("A", pair.primary.url)
    monkeypatch.setenv("B", pair.replica.url)
    with ExitStack() as opened:
        alone = opened.enter_context(FailedOver(tmp_path, pair, "env:B"))
        said = {finding.subject: finding for finding in check(alone.pipeline).findings}
        assert said["source shop: position"].status == "ok"
        assert "continue at timeline 1" in said["source shop: position"].what
        assert "source shop: gtid order" not in said
    pair.replica.run("SET GLOBAL gtid_strict_mode = ON")
    said = {finding.subject: finding for finding in check(line.pipeline).findings}
    assert said["source shop at env:A: position"].what.startswith("continues at")
    assert said["source shop at env:B: position"].what.startswith("not this server's")
    assert said["source shop at env:A: gtid order"].status == "warn"
    assert "source shop at env:B: gtid order" not in said
    assert line.notes == []
