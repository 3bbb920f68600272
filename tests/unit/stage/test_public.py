"""The public Python API, over stages made by hand; tests/acceptance/test_analysts.py runs it on a server's changes."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.stage import manifest, start_record
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.layout import CopiedName, copied_path, horizon_path
from cdc_core.stage.stores import open_store
from tests.lab.made_batches import HOUR_US, covered
from tests.lab.made_blocks import Made, at
from tests.lab.made_stages import KEYLESS, ORDERS, delete, insert, truncate, update, written
from tests.lab.made_stages import rows as table_rows
from tests.lab.refusals import raises

ELSEWHERE = TableSchema("old", "orders", ORDERS.columns)
SECOND_US = 1_000_000


def staged(folder: Path, *batches: Sequence[Made], source: str = "shop", whole: bool = True) -> Path:
    """A stage with one committed batch for each list of transactions, the n-th in the n-th hour."""
    store = open_store(folder.as_uri())
    start_record.put(store, source, Checkpoint(at(0)), pipeline="p")
    begin, made_batches = 0, []
    for hour, made in enumerate(batches):
        window = (hour * HOUR_US, (hour + 1) * HOUR_US)
        made_batches.append(written(store, begin, made, source=source, window=window, watermark_us=window[1]))
        begin += len(made)
    for batch in covered(made_batches) if whole else made_batches:
        manifest.commit(store, batch)
    return folder


def rows(found: lockstep.Rows, *names: str) -> list[tuple]:
    return table_rows(found.to_arrow(), *names)


@pytest.fixture
def history(tmp_path: Path) -> lockstep.Stage:
    """Three hours: rows 1, 2, 3; then 2 becomes 20 and 3 is deleted; then a late change of an hour before, and 4."""
    staged(
        tmp_path,
        [Made([insert(1), insert(2), insert(3)], ts=10 * SECOND_US)],
        [Made([update((2, "n"), (20, "moved")), delete(3)], ts=HOUR_US + 5)],
        [Made([insert(5, "late")], ts=HOUR_US - 1), Made([insert(4)], ts=2 * HOUR_US + 1)],
    )
    return lockstep.open(tmp_path)


def test_a_stage_opens_by_directory_and_by_uri_and_names_its_tables(history: lockstep.Stage, tmp_path: Path) -> None:
    for stage in (history, lockstep.open(str(tmp_path)), lockstep.open(tmp_path.as_uri())):
        assert (stage.tables(), list(stage), "shop.orders" in stage) == (["shop.orders"], ["shop.orders"], True)
        assert rows(stage["orders"].now(), "id", "note") == [(1, "n"), (4, "n"), (5, "late"), (20, "moved")]
    assert history["shop.orders"].key == ("id",)
    assert history["shop.orders"].missing() == []


def test_the_state_at_a_moment_and_the_changes_since_it_make_the_state_of_now(history: lockstep.Stage) -> None:
    orders = history["shop.orders"]
    zone = datetime.timezone(datetime.timedelta(hours=5))
    moments = [
        "1970-01-01T00:00:09Z", "1970-01-01T00:59:59.999999Z", datetime.datetime(1970, 1, 1, 6, 0, 0, 5, zone),
        str(at(1)), str(at(3)), "1970-01-01T03:00:00+00:00",
    ]  # fmt: skip
    everything = rows(orders.changes(), "_cdc_seq", "_cdc_row")
    for moment in moments:
        before, after = orders.changes(until=moment), orders.changes(since=moment)
        assert rows(before, "_cdc_seq", "_cdc_row") + rows(after, "_cdc_seq", "_cdc_row") == everything
        table = {row["id"]: row["note"] for row in orders.as_of(moment).to_arrow().to_pylist()}
        for row in after.to_arrow().to_pylist():
            if row["_cdc_op"] == "u":
                del table[row["_before"]["id"]]
            table[row["id"]] = row["note"]
            if row["_cdc_op"] == "d":
                del table[row["id"]]
        assert table == dict(rows(orders.now(), "id", "note")), moment
    assert orders.as_of(moments[0]).to_arrow().num_rows == 0


def test_before_its_first_batch_a_stage_has_no_answer(history: lockstep.Stage, tmp_path: Path) -> None:
    """No rows would be an answer: that the table was empty."""
    orders, early = history["orders"], "1969-12-31T23:59:59Z"
    for ask in (
        orders.as_of(early).to_arrow, orders.changes(until=early).to_arrow,
        orders.changes(until=early, by_key=True).to_arrow, lambda: orders.as_of(early).schema,
        lambda: history.sql("SELECT * FROM shop.orders", as_of=early), orders.as_of(str(at(0))).to_arrow,
        lambda: orders.as_of(early).to_parquet(tmp_path / "orders.parquet"),
    ):  # fmt: skip
        with pytest.raises(lockstep.Refused) as caught:
            ask()
        assert (caught.value.code, "ask for a moment after" in caught.value.remedy) == ("stage.as_of", True)
    assert not (tmp_path / "orders.parquet").exists()


@pytest.mark.parametrize("accepted", [False, True])
def test_a_table_of_which_nothing_was_staged_yet_is_not_taken_for_an_empty_one(tmp_path: Path, accepted: bool) -> None:
    """It may have had rows: nothing is known of it at that moment."""
    elsewhere = [Made([insert(1, schema=ELSEWHERE)], ts=5)]
    staged(tmp_path, elsewhere, [Made([insert(2)], ts=HOUR_US + 5)], whole=False)
    stage, early = lockstep.open(tmp_path), "1970-01-01T00:30:00Z"
    asked = [
        stage["shop.orders"].as_of(early, partial=accepted),
        *([stage.sql("SELECT * FROM shop.orders", as_of=early, partial=True)] if accepted else []),
    ]
    if accepted:
        for found in asked:
            assert found.to_arrow().num_rows == 0
            assert found.schema.names[:2] == ["id", "note"]
        assert stage.sql("SELECT * FROM shop.orders_by_key", as_of=early).to_arrow().num_rows == 0
    else:
        with raises(lockstep.Refused, "stage.partial"):
            asked[0].to_arrow()
        with raises(lockstep.Refused, "stage.partial"):
            stage.sql("SELECT * FROM shop.orders", as_of=early)
    assert stage["shop.orders"].changes(until=early).to_arrow().num_rows == 0


def test_a_table_that_did_not_exist_yet_is_empty(tmp_path: Path) -> None:
    """Every captured table that existed was known when reading began, and this one was created later."""
    store = open_store(tmp_path.as_uri())
    staged(tmp_path, [Made([insert(1, schema=ELSEWHERE)], ts=5)], [Made([insert(2)], ts=HOUR_US + 5)])
    last = list(manifest.chain(store, "shop"))[-1]
    created = TableCoverage(How.CREATED, at(1).seq, HOUR_US + 1, "here", absent_seq=at(0).seq)
    store.delete(last.path)
    manifest.commit(store, replace(last, coverage={"shop.orders": created}))
    stage = lockstep.open(tmp_path)
    for moment, ids in (("1970-01-01T00:30:00Z", []), ("1970-01-01T01:30:00Z", [(2,)])):
        assert rows(stage["shop.orders"].as_of(moment), "id") == ids
        assert rows(stage.sql("SELECT id FROM shop.orders", as_of=moment), "id") == ids


def test_by_key_the_last_row_of_a_key_says_whether_it_is_there(tmp_path: Path) -> None:
    staged(
        tmp_path,
        [Made([insert(1), insert(2), insert(3)])],
        [Made([truncate(), insert(2, "again")]), Made([update((2, "again"), (1, "moved"))])],
        [Made([insert(9), delete(9)])],
    )
    found = lockstep.open(tmp_path)["shop.orders"].changes(by_key=True)
    assert rows(found, "_cdc_op", "id", "note", "_before") == [
        ("c", 1, "n", None), ("c", 2, "n", None), ("c", 3, "n", None),
        ("d", 1, None, None), ("d", 2, None, None), ("d", 3, None, None), ("c", 2, "again", None),
        ("d", 2, "again", None), ("c", 1, "moved", None), ("c", 9, "n", None), ("d", 9, "n", None),
    ]  # fmt: skip
    last = {row[0]: row[1:] for row in rows(found, "id", "_cdc_op", "note")}
    assert {key: note for key, (op, note) in last.items() if op != "d"} == {1: "moved"}


def test_a_bookmark_gives_each_later_change_once_copied_rows_too(tmp_path: Path) -> None:
    """Rows of a copy may be staged at a place that was read before they were."""
    staged(tmp_path, [Made([insert(1)]), Made([insert(2)])], [Made([insert(3)])])
    stage = lockstep.open(tmp_path)
    bookmark = stage.bookmark()
    store = open_store(tmp_path.as_uri())
    first, _ = manifest.chain(store, "shop")
    assert rows(stage["shop.orders"].changes(since=bookmark), "id") == []

    path = copied_path("shop.orders", 0, CopiedName("shop", 7, 1, 0))
    store.put(path, store.get(first.parts[0].path))
    low = first.end.position
    part = replace(first.parts[0], path=path, ops={"r": 2})
    chunk = CopiedChunk(7, "shop.orders", (), (), 0, low, low, 2, (path,))
    copied = replace(
        first, begin=first.end, end=first.end, parts=(part,), events=0, transactions=0, chunks=(chunk,), coverage={}
    )
    manifest.commit(store, copied)
    hour = (2 * HOUR_US, 3 * HOUR_US)
    manifest.commit(store, written(store, 3, [Made([insert(4)])], window=hour, watermark_us=hour[1]))
    stage.refresh()
    assert sorted(rows(stage["shop.orders"].changes(since=bookmark), "id")) == [(1,), (2,), (4,)]
    assert rows(stage["shop.orders"].changes(since=stage.bookmark()), "id") == []
    ahead = stage.bookmark().replace(str(at(4)), str(at(9)))
    for moment, code in (("{}}", "usage.argument"), (ahead, "stage.as_of")):
        with raises(lockstep.LockstepError, code):
            stage["shop.orders"].changes(since=moment)
    store.put(horizon_path("shop"), Horizon("shop", at(3), HOUR_US, "x", (), {}).to_bytes())
    with raises(lockstep.Refused, "stage.partial"):
        stage["shop.orders"].changes(since=bookmark.replace(str(at(3)), str(at(2))))


def test_changes_of_a_table_without_a_key_are_not_told_by_key(tmp_path: Path) -> None:
    table = lockstep.open(staged(tmp_path, [Made([insert(1, schema=KEYLESS)])]))["log"]
    assert table.key == ()
    with raises(lockstep.Refused, "stage.key"):
        table.changes(by_key=True).to_arrow()
    assert rows(table.changes(by_key=True, key=["n"]), "n") == [(1,)]


def test_rows_go_to_each_library_with_their_types(history: lockstep.Stage, tmp_path: Path) -> None:
    now = history["shop.orders"].now()
    arrow = now.to_arrow()
    assert now.schema == arrow.schema
    assert now.to_pandas()["id"].dtype.pyarrow_dtype == pa.int32()
    assert now.to_polars()["id"].to_list() == pl.DataFrame(now)["id"].to_list() == [1, 4, 5, 20]
    orders = now.to_duckdb()
    assert duckdb.sql("SELECT sum(id) FROM orders").fetchall() == [(30,)]
    with duckdb.connect() as connection:
        assert now.to_duckdb(connection).aggregate("max(id)").fetchall() == [(20,)]
    assert pa.table(now).num_rows == orders.count("*").fetchall()[0][0] == 4
    assert now.to_parquet(tmp_path / "orders.parquet") == 4
    assert pq.read_table(tmp_path / "orders.parquet").equals(arrow)
    assert rows(history.sql('SELECT count(*) AS n FROM "shop.orders_changes"'), "n") == [(7,)]


@pytest.mark.parametrize("how", ["now", "changes", "by_key"])
def test_batches_are_never_larger_than_asked_for_and_hold_every_row_once(tmp_path: Path, how: str) -> None:
    table = lockstep.open(staged(tmp_path, *([Made([insert(100 * n + m) for m in range(100)])] for n in range(3))))[
        "orders"
    ]
    found = table.now() if how == "now" else table.changes(by_key=how == "by_key")
    batches = list(found.batches(64))
    assert max(batch.num_rows for batch in batches) <= 64
    assert sorted(number for batch in batches for number in batch.column("id").to_pylist()) == list(range(300))
    assert {batch.schema for batch in batches} == {found.schema}


def test_a_stage_is_what_it_was_when_it_was_opened_until_it_is_refreshed(tmp_path: Path) -> None:
    staged(tmp_path, [Made([insert(1)])])
    stage = lockstep.open(tmp_path)
    staged(tmp_path, [Made([insert(7)])], source="other")
    assert stage["orders"].now().to_arrow().num_rows == 1
    stage.refresh()
    assert stage["orders"].changes().to_arrow().num_rows == 2


def test_what_cannot_be_answered_is_an_error_with_a_code_and_a_way_out(
    tmp_path: Path, history: lockstep.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(ask: object) -> str:
        with pytest.raises(lockstep.LockstepError) as caught:
            ask()
        assert caught.value.remedy
        return caught.value.code

    orders = history["shop.orders"]
    with pytest.raises(lockstep.UsageError, match="did you mean 'orders'") as caught:
        history["ordres"]
    assert (caught.value.code, "shop.orders" in caught.value.remedy) == ("usage.unknown_name", True)
    assert code(lambda: orders.as_of("1970-01-02T00:00:00Z")) == "stage.as_of"
    assert code(lambda: orders.changes(until=str(at(9)))) == "stage.as_of"
    for moment in ("yesterday", "1970-01-01T00:00:09", datetime.datetime(1970, 1, 1), 7):
        assert code(lambda moment=moment: orders.as_of(moment)) == "usage.argument"
    assert code(lambda: orders.changes(by_key=True, since="1970-01-01T00:00:09Z")) == "usage.argument"
    assert code(lambda: history.sql("SELECT 1 FROM nothing")) == "stage.sql"
    assert code(lambda: lockstep.open(tmp_path / "missing")) == "usage.argument"
    (tmp_path / "empty").mkdir()
    assert code(lambda: lockstep.open(tmp_path / "empty")) == "source.not_extracted"
    monkeypatch.setitem(sys.modules, "polars", None)
    assert code(orders.now().to_polars) == "install.missing"


def test_a_short_name_that_two_tables_have_is_refused_with_both(tmp_path: Path) -> None:
    staged(tmp_path, [Made([insert(1), insert(2, schema=ELSEWHERE)])])
    with raises(lockstep.UsageError, "usage.unknown_name", match=r"old\.orders, shop\.orders"):
        lockstep.open(tmp_path)["orders"]


def test_the_state_of_a_partial_table_is_refused_unless_that_is_accepted(tmp_path: Path) -> None:
    stage = lockstep.open(staged(tmp_path, [Made([insert(1)], ts=5)], whole=False))
    orders = stage["orders"]
    assert len(orders.missing()) == 1
    for refused in (orders.now(), orders.as_of("1970-01-01T00:30:00Z")):
        with raises(lockstep.Refused, "stage.partial"):
            refused.to_arrow()
    with raises(lockstep.Refused, "stage.partial"):
        stage.sql("SELECT * FROM shop.orders")
    accepted = orders.now(partial=True), orders.as_of("1970-01-01T00:30:00Z", partial=True), orders.changes()
    for found in (*accepted, stage.sql("SELECT * FROM shop.orders", partial=True)):
        assert rows(found, "id") == [(1,)]


@pytest.mark.slow
def test_what_is_public_is_typed_and_its_names_are_what_a_checker_sees(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import lockstep\n"
        "stage = lockstep.open('shop.yaml')\n"
        "reveal_type(stage['shop.orders'].as_of('x').to_parquet('y'))\n"
        "reveal_type(stage.tables())\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports=silent"]
    # Without the libraries, whose types take ten times as long to read and say nothing about these.
    done = subprocess.run(
        [*command, "--no-site-packages", "--config-file=", f"--cache-dir={tmp_path}", str(program)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    revealed = done.stdout.replace("builtins.", "")
    assert 'Revealed type is "int"' in revealed, done.stdout + done.stderr
    assert 'Revealed type is "list[str]"' in revealed
