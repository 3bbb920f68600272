"""The stream through a network that breaks: what it hands on is the log, once, and it knows when to give up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater
from cdc_core.model.block import Block
from cdc_core.model.position import Checkpoint
from cdc_core.mysql import connections
from cdc_core.source.host.source_server import facts
from examples.sandbox.mariadb import MariaDb
from tests.lab.origin import (
    TABLES,
    Origin,
    assert_partition,
    changes_of,
    in_order,
    read_to,
    replay,
    workload,
)
from tests.lab.tcp_proxy import TcpProxy

QUICK = {"heartbeat_s": 0.3, "read_timeout_s": 1.0, "reconnect_s": 30.0}


@pytest.fixture
def proxy(origin: Origin) -> Iterator[TcpProxy]:
    with TcpProxy(origin.sql.port) as made:
        yield made


def through(proxy: TcpProxy, origin: Origin) -> connections.Server:
    return replace(origin.address(), port=proxy.port)


def known(origin: Origin) -> Checkpoint:
    """The log's end, with the server's identity."""
    return replace(origin.end(), server=facts(origin.control).identity)


def assert_equal(origin: Origin, start: Checkpoint, blocks: list[Block]) -> None:
    end = origin.end().position
    assert_partition(blocks, start.position, end)
    tables = replay(blocks)
    for table in ("customer", "item"):
        assert in_order(tables[table]) == in_order(origin.rows(table))
    plain = origin.drain(start, until=end)
    assert changes_of(blocks) == changes_of(plain)
    for block in plain:
        assert block.source == "origin"
    assert sum(sum(block.left_out.values()) for block in blocks) == sum(sum(block.left_out.values()) for block in plain)


def test_a_connection_that_is_cut_again_and_again_loses_and_repeats_nothing(origin: Origin, proxy: TcpProxy) -> None:
    origin.execute(*TABLES)
    start = known(origin)
    workload(origin, 150)
    proxy.cut_after(17_000)
    with origin.stream(
        start, address=through(proxy, origin), include=[rf"{origin.name}\.(customer|item)"], **QUICK
    ) as stream:
        blocks = read_to(stream, origin.end().position)
    assert proxy.accepted > 4
    assert_equal(origin, start, blocks)


def stalled(proxy: TcpProxy) -> None:
    proxy.stall()
    threading.Timer(1.5, proxy.flow).start()


DISTURBANCES: dict[str, Callable[[TcpProxy], None]] = {
    "stalled for longer than the read timeout": stalled,
    "half open": TcpProxy.half_open,
    "slow": lambda proxy: proxy.slow(0.001),
    "bent": lambda proxy: proxy.bend(1),
}


@pytest.mark.parametrize("what", DISTURBANCES)
def test_after_a_disturbance_the_stream_goes_on_to_what_the_source_holds(
    origin: Origin, proxy: TcpProxy, what: str
) -> None:
    origin.execute(*TABLES)
    start = known(origin)
    workload(origin, 30)
    with origin.stream(start, address=through(proxy, origin), **QUICK) as stream:
        blocks = read_to(stream, origin.end().position)
        DISTURBANCES[what](proxy)
        workload(origin, 60, seed=2)
        blocks += read_to(stream, origin.end().position)
    assert_equal(origin, start, blocks)


def test_a_server_that_crashes_and_comes_back_is_read_on(origin: Origin) -> None:
    origin.execute(*TABLES)
    start = known(origin)
    workload(origin, 20)
    with origin.stream(start, **QUICK) as stream:
        blocks = read_to(stream, origin.end().position)
        origin.sql.kill()
        back = threading.Thread(target=origin.sql.restart)
        back.start()
        ended: list[bool] = []
        blocks += list(stream.blocks(lambda: ended.append(True) or len(ended) > 5))
        back.join()
        workload(origin, 20, seed=2)
        blocks += read_to(stream, origin.end().position)
    assert_equal(origin, start, blocks)


def lost_for_good(origin: Origin, proxy: TcpProxy, disturb: Callable[[], object], **more: float) -> LockstepError:
    origin.execute(*TABLES)
    workload(origin, 5)
    start = known(origin)
    workload(origin, 5, seed=2)
    with origin.stream(start, address=through(proxy, origin), **{**QUICK, **more}) as stream:
        blocks = read_to(stream, origin.end().position)
        disturb()
        with pytest.raises(LockstepError) as caught:
            list(stream.blocks(lambda: False))
        assert stream.position == blocks[-1].end
    return caught.value


def test_a_server_that_does_not_come_back_ends_the_stream_when_the_budget_is_over(
    origin: Origin, proxy: TcpProxy
) -> None:
    def gone() -> None:
        proxy.refuse(True)
        proxy.cut()

    error = lost_for_good(origin, proxy, gone, reconnect_s=3.0)
    assert isinstance(error, RetryLater)
    assert error.code == "connection.unreachable"
    assert proxy.accepted > 4


def test_a_log_that_was_purged_meanwhile_stops_at_once(origin: Origin, proxy: TcpProxy) -> None:
    def purge() -> None:
        proxy.cut()
        origin.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        origin.purge_to(origin.end().position.file)

    error = lost_for_good(origin, proxy, lambda: (proxy.refuse(True), purge(), proxy.refuse(False)))
    assert isinstance(error, DataAtRisk)
    assert error.code == "source.log_lost"


def test_a_setting_that_a_start_refuses_stops_a_reconnected_stream(origin: Origin, proxy: TcpProxy) -> None:
    def unlog_rows() -> None:
        origin.execute_on_server("SET GLOBAL binlog_format = 'STATEMENT'")
        proxy.cut()

    try:
        error = lost_for_good(origin, proxy, unlog_rows)
    finally:
        origin.execute_on_server("SET GLOBAL binlog_format = 'ROW'")
    assert (type(error), error.code) == (Refused, "connection.setting")


def test_another_server_at_the_same_address_is_not_read(
    origin: Origin, proxy: TcpProxy, mariadb_target: MariaDb
) -> None:
    account = ("CREATE USER IF NOT EXISTS lockstep@'%' IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO lockstep@'%'")

    def swap() -> None:
        mariadb_target.run(*account)
        proxy.lead_to(mariadb_target.port)
        proxy.cut()

    origin.execute_on_server(*account)
    address = replace(through(proxy, origin), user="lockstep", password="x")
    start = known(origin)
    with origin.stream(start, address=address, **QUICK) as stream:
        swap()
        with pytest.raises(DataAtRisk) as caught:
            list(stream.blocks(lambda: False))
    assert caught.value.code == "source.other_log"


def test_a_login_that_is_refused_meanwhile_stops_at_once(origin: Origin, proxy: TcpProxy) -> None:
    origin.execute_on_server(
        "CREATE OR REPLACE USER gone@'%' IDENTIFIED BY 'x'"
        if origin.mariadb
        else "CREATE USER gone@'%' IDENTIFIED BY 'x'",
        "GRANT ALL ON *.* TO gone@'%'",
    )
    start = known(origin)
    address = replace(through(proxy, origin), user="gone", password="x")
    with origin.stream(start, address=address, **QUICK) as stream:
        list(stream.blocks(lambda: stream.position >= start.position))
        origin.execute_on_server("DROP USER gone@'%'")
        proxy.cut()
        with pytest.raises(Refused) as caught:
            list(stream.blocks(lambda: False))
    assert caught.value.code == "connection.denied"


def test_a_transaction_of_which_pieces_have_left_is_not_cut_but_given_back_to_the_caller(
    origin: Origin, proxy: TcpProxy
) -> None:
    origin.execute(*TABLES)
    start = known(origin)
    origin.execute(
        "INSERT INTO item WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 900) "
        "SELECT i, 1, REPEAT('y', 500) FROM n"
    )
    proxy.cut_after(200_000)
    blocks: list[Block] = []
    with (
        origin.stream(start, address=through(proxy, origin), block_bytes=50_000, **QUICK) as stream,
        pytest.raises(RetryLater) as caught,
    ):
        blocks.extend(stream.blocks(lambda: False))
    assert caught.value.code == "connection.unreachable"
    assert len(blocks) > 1
