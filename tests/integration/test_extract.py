"""The extractor on a real MariaDB: fences, budgets, crashes between the durable steps, and leases."""

from __future__ import annotations

import json
import time
from contextlib import closing
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cdc_core.cli.app import app
from cdc_core.errors import LockstepError, Refused, RetryLater, UsageError
from cdc_core.meta import Meta
from cdc_core.model.windows import from_us
from cdc_core.source.host import source_faults as faults
from cdc_core.source.host import source_server as server
from cdc_core.source.transactions import source_stream as stream
from cdc_core.stage import isolated as left_out
from cdc_core.stage import manifest as manifests
from examples.sandbox.mariadb import MariaDb
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes, table_state
from tests.lab.tcp_proxy import TcpProxy
from tests.lab.waiting import wait_until

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def any_server(mariadb: MariaDb) -> MariaDb:
    return mariadb


TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v INT)"


def test_a_drain_to_now_stages_everything_up_to_the_servers_position(make_line):
    line = make_line()
    line.origin.execute(
        TABLE, "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET v = 9 WHERE id = 2", "DELETE FROM t WHERE id = 1"
    )
    before_us = time.time_ns() // 1000
    result = line.extract()
    assert result.done
    assert result.staged.rows == 4
    assert result.watermark_us >= before_us
    state = table_state(line.store, line.chain, "t").select(["id", "v"]).to_pylist()
    assert state == [{"id": 2, "v": 9}]
    ring = line.meta.status.find().sources[0].ring
    assert (ring.items, ring.size_bytes) == (0, 0)
    assert 4 <= ring.most_items <= result.staged.events
    assert ring.most_bytes > 0


def test_a_block_that_reaches_the_fence_leaves_without_waiting_for_more(make_line, monkeypatch):
    monkeypatch.setattr(stream, "POLL_S", 60)
    monkeypatch.setattr(stream, "FLUSH_S", 3600)
    line = make_line()
    line.origin.execute(TABLE)
    with line.extractor() as extractor:
        for number in (1, 2):
            line.origin.execute(f"INSERT INTO t VALUES ({number}, 1)")
            assert extractor.drain(budget_s=30).done
    assert line.changed_ids() == [1, 2]


def test_before_the_interval_is_over_the_drain_is_not_done_and_keeps_what_it_read(make_line):
    line = make_line()
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")
    with line.extractor() as extractor:
        until_us = time.time_ns() // 1000 + HOUR
        for _ in range(3):
            assert not extractor.drain(until_us=until_us, budget_s=0.1).done
        line.origin.execute("INSERT INTO t VALUES (2, 1)")
        assert extractor.drain().done
    assert line.changed_ids() == [1, 2]


def test_an_interval_in_the_past_is_complete_at_the_fence(make_line):
    line = make_line()
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")
    now_us = time.time_ns() // 1000
    with line.extractor() as extractor:
        result = extractor.drain(until_us=now_us - HOUR)
    assert result.done
    assert line.meta.positions.checkpoint("shop").watermark_us >= now_us - HOUR


def test_a_transaction_larger_than_the_ring_is_staged_whole(make_line):
    line = make_line(limits="ring_items: 16, ring_mib: 1")
    line.origin.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(900))",
        "INSERT INTO t SELECT seq, REPEAT('x', 900) FROM seq_1_to_4000",
    )
    line.drain()
    batches = [batch for batch in line.chain if batch.rows]
    assert [(batch.rows, batch.transactions) for batch in batches] == [(4000, 1)]


def test_a_large_transaction_that_the_log_rolls_back_leaves_nothing(make_line, tmp_path):
    line = make_line(limits="ring_mib: 1")
    line.origin.execute(
        TABLE,
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TEMPORARY TABLE hidden (id INT)",
        "START TRANSACTION",
        "INSERT INTO t SELECT seq, 0 FROM seq_100_to_40000",
        "DROP TEMPORARY TABLE hidden",  # which cannot be undone, so that all of it is logged, with a ROLLBACK
        "ROLLBACK",
        "INSERT INTO t VALUES (2, 1)",
    )
    with (
        patch.object(faults, "undone_after_parts", wraps=faults.undone_after_parts) as met,
        line.extractor() as extractor,
    ):
        assert extractor.drain().done
    assert met.call_count == 1
    assert line.changed_ids() == [1, 2]
    assert manifests.verify(line.store, "shop", deep=True) == []
    listed = {line.store.local_path(part.path) for batch in line.chain for part in batch.parts}
    assert set((tmp_path / "stage").rglob("*.parquet")) == listed


def test_the_first_position_is_kept_before_anything_was_staged(make_line):
    line = make_line(source="start: latest")
    with line.extractor():
        first = line.meta.positions.checkpoint("shop")
    assert first.server
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")
    line.drain()
    assert line.changed_ids() == [1]
    assert line.meta.positions.checkpoint("shop").server == first.server


def test_a_position_that_the_server_will_purge_soon_is_told_of_also_while_it_is_followed(
    make_line, origin, monkeypatch, caplog
):
    line = make_line()
    file = origin.end().position.file
    origin.purge_to(file)
    line.origin.execute(TABLE)
    with line.extractor() as extractor:
        extractor.drain()
        assert "the oldest of" not in caplog.text
        line.origin.execute("FLUSH BINARY LOGS")
        extractor.drain(until_us=time.time_ns() // 1000 + HOUR, budget_s=0)
        assert "the oldest of" not in caplog.text
        line.origin.execute("FLUSH BINARY LOGS")
        monkeypatch.setattr(extractor, "_advice_due_s", 0)
        extractor.drain(until_us=time.time_ns() // 1000 + HOUR, budget_s=0)
    assert f"our position is in {file}, the oldest of" in caplog.text


def test_of_a_purge_that_takes_nothing_we_need_nothing_is_said(make_line, monkeypatch, caplog):
    monkeypatch.setattr(server, "advise_position", lambda *_: "purged soon")
    line = make_line()
    line.drain()
    with line.extractor() as extractor:
        extractor.drain()
        assert "purged soon" not in caplog.text
        line.origin.execute(TABLE)
        monkeypatch.setattr(extractor, "_advice_due_s", 0)
        extractor.drain()
    assert "purged soon" in caplog.text


def test_an_extractor_renews_its_lease_and_another_is_told_to_come_later(make_line):
    line = make_line(limits="lease_s: 5")
    with line.extractor(holder="first") as extractor:
        taken_us = line.lease_expires_us
        wait_until(lambda: line.lease_expires_us > taken_us)
        with raises(RetryLater, "lease.held", match="first"), line.extractor():
            pass
        assert extractor.drain().done


def test_what_waits_in_the_ring_is_seen_from_outside_while_nobody_drains(make_line):
    line = make_line(limits="lease_s: 5")  # of which each third tells
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1), (2, 2)")
    with line.extractor():
        while (ring := line.meta.status.find().sources[0].ring).items < 3:  # changes and the end of their transaction
            time.sleep(0.3)
        assert ring.most_items >= ring.items
        assert ring.most_bytes >= ring.size_bytes > 0
    assert line.meta.status.find().sources[0].ring.items == 0


def test_a_truncate_that_is_staged_empties_the_table_as_the_stage_has_it(make_line):
    line = make_line(tables="on_truncate: stage")
    line.origin.execute(TABLE, "TRUNCATE t", "INSERT INTO t VALUES (1, 1), (2, 1)", "TRUNCATE TABLE t")
    line.origin.execute("INSERT INTO t VALUES (2, 3)", "CREATE TABLE u (id INT)", "TRUNCATE u", "TRUNCATE u")
    line.drain()
    assert line.changed_ids() == [None, 1, 2, None, 2]
    assert [row["id"] for row in table_state(line.store, line.chain, "t").to_pylist()] == [2]
    assert table_state(line.store, line.chain, "u").num_rows == 0
    assert not any(batch.notes for batch in line.chain)


def test_a_meta_that_forgot_what_the_stage_holds_is_refused(make_line, tmp_path):
    line = make_line()
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")
    line.drain()
    with closing(Meta.open(f"sqlite:///{tmp_path}/other.db", "shop")) as empty:
        line.meta = empty
        with pytest.raises(Refused) as caught:
            line.extract()
    assert caught.value.code == "meta.behind"


def test_a_transaction_cut_off_after_pieces_of_it_were_staged_is_read_again_and_staged_once(make_line, origin):
    line = make_line(limits="ring_items: 16, ring_mib: 1", source="reconnect_s: 30")
    line.origin.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(900))", "INSERT INTO t VALUES (0, '')")
    server = origin.sql
    with TcpProxy(server.port) as proxy:
        line.environ["SOURCE"] = server.url.replace(str(server.port), str(proxy.port))
        with line.extractor() as extractor:
            assert extractor.drain().done
            proxy.cut()
            proxy.cut_after(3_000_000, once=True)
            line.origin.execute("INSERT INTO t SELECT seq, REPEAT('x', 900) FROM seq_1_to_5000")
            result = extractor.drain()
    assert result.done
    assert result.staged.rows == 5001
    assert result.stats.losses >= 2
    assert result.stats.put_waits > 0
    assert line.changed_ids() == list(range(5001))
    assert manifests.verify(line.store, "shop", deep=True) == []


def test_a_server_that_goes_away_is_a_reason_to_come_later_and_loses_nothing(make_line, origin):
    line = make_line(source="reconnect_s: 2")
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")

    def drain_until_it_fails() -> None:
        with line.extractor() as extractor:
            origin.sql.kill()
            while True:
                extractor.drain(budget_s=0.2)

    with pytest.raises(LockstepError) as caught:
        drain_until_it_fails()
    origin.sql.restart()
    assert caught.value.retriable, caught.value
    line.drain()
    assert line.changed_ids() == [1]


ODD = "CREATE TABLE odd (id INT PRIMARY KEY, _cdc_seq INT)"


def test_a_table_that_cannot_be_read_stops_the_source_or_is_left_out_until_it_is_cleared(make_line, origin, tmp_path):
    line = make_line()
    odd = f"{origin.name}.odd"
    line.origin.execute(
        TABLE, ODD, "INSERT INTO t VALUES (1, 1)",
        "BEGIN", "INSERT INTO odd VALUES (1, 1)", "INSERT INTO t VALUES (2, 1)", "COMMIT",
    )  # fmt: skip
    with raises(Refused, "source.unsupported_table"):
        line.drain()
    assert line.changed_ids() == [1]
    line.change(tables="on_unreadable: isolate")
    line.drain()
    line.origin.execute("INSERT INTO odd VALUES (2, 1)", "TRUNCATE TABLE odd", "INSERT INTO t VALUES (3, 1)")
    line.drain()  # a new start keeps it isolated
    line.origin.execute("INSERT INTO odd VALUES (3, 1)", "INSERT INTO t VALUES (4, 1)")
    line.drain()
    assert line.changed_ids() == [1, 2, 3, 4]
    assert {part.table for batch in line.chain for part in batch.parts} == {"t"}
    for batch in line.chain[1:]:
        assert any(f"table {odd} is isolated, needs re-sync" in note for note in batch.notes)
        assert "source.unsupported_table" in batch.isolated[odd]
    assert sum(batch.left_out.get("table isolated", 0) for batch in line.chain) == 3
    notes = line.meta.status.find().sources[0].notes
    assert any("is isolated" in note for note in notes)

    line.origin.execute("ALTER TABLE odd RENAME COLUMN _cdc_seq TO seq")
    line.drain()
    command = ["stage", "isolated", str(tmp_path / "shop.yaml"), "--json"]
    assert odd in CliRunner().invoke(app, command).stdout
    left_out.clear(line.store, "shop", odd)
    left_out.clear(line.store, "shop", odd)  # again
    assert json.loads(CliRunner().invoke(app, command).stdout)["isolated"] == []
    with raises(UsageError, "usage.unknown_name"):
        left_out.clear(line.store, "shop", f"{origin.name}.t")
    line.origin.execute("INSERT INTO odd VALUES (4, 1)", "INSERT INTO t VALUES (5, 1)")
    line.drain()
    assert changes(line.store, line.chain, "odd")["id"].to_pylist() == [4]
    assert line.changed_ids() == [1, 2, 3, 4, 5]
    assert line.chain[-1].isolated == {}


def test_a_table_is_exported_as_it_was_at_a_position_and_at_a_time(make_line, tmp_path):
    line = make_line()
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1), (2, 2)")
    line.drain()
    before = line.meta.positions.checkpoint("shop")
    time.sleep(1.1)  # MariaDB's log knows whole seconds
    line.origin.execute("UPDATE t SET v = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    line.drain()
    moments = [str(before.position), from_us(before.watermark_us).isoformat()]
    for moment in moments:
        target = tmp_path / "then.parquet"
        command = ["stage", "export", str(tmp_path / "shop.yaml"), "t", "-o", str(target), "--force", "--as-of", moment]
        assert CliRunner().invoke(app, command).exit_code == 0
        rows = pq.read_table(target).select(["id", "v"]).to_pylist()
        assert rows == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    later = from_us(time.time_ns() // 1000 + HOUR).isoformat()
    asked = CliRunner().invoke(app, ["stage", "sql", str(tmp_path / "shop.yaml"), "SELECT * FROM t", "--as-of", later])
    assert isinstance(asked.exception, Refused)
    assert asked.exception.code == "stage.as_of"


def test_a_source_without_changes_of_its_own_moves_with_the_log_and_outlives_a_purge(make_line, origin):
    line = make_line()
    line.origin.execute(TABLE, "INSERT INTO t VALUES (1, 1)")
    line.drain()
    first = line.meta.positions.checkpoint("shop").position
    name = f"{origin.name}_other"
    line.origin.execute(
        f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id INT)", f"INSERT INTO {name}.t VALUES (1)",
        "FLUSH BINARY LOGS", f"DROP DATABASE {name}", "FLUSH BINARY LOGS",
    )  # fmt: skip
    line.drain()
    reached = line.meta.positions.checkpoint("shop").position
    assert reached.number >= first.number + 2
    origin.purge_to(reached.file)
    line.origin.execute("INSERT INTO t VALUES (2, 1)")
    line.drain()
    assert line.changed_ids() == [1, 2]


def test_what_tables_were_is_kept_with_the_batches_and_restored_with_them(make_line, origin, tmp_path):
    line = make_line(tables="on_unlogged_change: record")
    line.origin.execute("SET GLOBAL binlog_row_metadata = MINIMAL", "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    try:
        line.origin.execute("INSERT INTO t VALUES (1, 10, 20)")
        line.drain()
        line.origin.execute(
            "INSERT INTO t VALUES (2, 11, 21)", "ALTER TABLE t RENAME COLUMN a TO c, RENAME COLUMN b TO a"
        )
        with Meta.open(f"sqlite:///{tmp_path}/other.db", "shop") as other:
            lease = other.leases.acquire("shop", "test", 60)
            other.rebuild(lease, line.chain)
            assert other.schemas.history("shop") == line.meta.schemas.history("shop") != ()
        line.origin.execute("INSERT INTO t VALUES (3, 12, 22)")
        line.drain()
    finally:
        line.origin.execute("SET GLOBAL binlog_row_metadata = FULL")
    rows = changes(line.store, line.chain, "t").select(["id", "a", "b", "c"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 10, 20, None), (2, 11, 21, None), (3, 22, None, 12)]
