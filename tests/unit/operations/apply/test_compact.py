"""Compaction: the same rows in fewer files for every reader, at every step, whoever else is at work."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lockstep
from cdc_core.errors import DataAtRisk, LockstepError, RetryLater, severity
from cdc_core.meta import Lease
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.model.run_plan import files_to_read
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.apply import replay, retention
from cdc_core.operations.apply.compact import By, Compacted, compact
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.apply.turn import turn_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions, manifest
from cdc_core.stage.compacting import compact as write
from cdc_core.stage.layout import compaction_path, originals_removed_path
from cdc_core.stage.parquet import PartFile
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_batches import HOUR_US
from tests.lab.made_blocks import Change, Made, at, block
from tests.lab.made_line import Line
from tests.lab.made_stages import ORDERS
from tests.lab.opened import opened_line
from tests.lab.refusals import refusal

ITEMS = TableSchema("shop", "items", ORDERS.columns)
WIDER = TableSchema("shop", "orders", (*ORDERS.columns, Column("more", ColumnType("int"))))


@dataclass
class Staged:
    """A line whose batches have real files; `batches` as they were staged."""

    line: Line
    root: Path
    batches: list[Manifest]
    entries: int = 0

    def stage(self, at_us: int, *made: Made) -> Manifest:
        window = (at_us - at_us % HOUR_US, at_us - at_us % HOUR_US + HOUR_US)
        begin = Checkpoint(at(self.entries), watermark_us=window[0])
        writer = BatchWriter(self.line.store, pipeline="line", source="shop", epoch=1, begin=begin, window=window)
        writer.add(block(made, at(self.entries)))
        self.entries += len(made)
        batch = writer.finish(Checkpoint(at(self.entries), watermark_us=window[1]))
        if not self.batches:
            coverage = TableCoverage(How.CREATED, begin.position.seq - 1, 0, str(begin.position), None)
            batch = replace(batch, coverage=dict.fromkeys(("shop.orders", "shop.items"), coverage))
        self.line.stage(batch)
        self.batches.append(batch)
        return batch

    def compact(self, **options: Any) -> Compacted:
        return compact(opened_line(self.line), **options)

    def removed(self, **options: Any) -> Compacted:
        return self.compact(older_than_us=-1, **options)

    def changes(self) -> dict[str, Any]:
        stage = lockstep.open(self.root / "stage")
        return {name: stage[name].changes().to_arrow().to_pylist() for name in stage}

    def seen(self) -> dict[str, Any]:
        """What readers see."""
        stage = lockstep.open(self.root / "stage")
        found: dict[str, Any] = {}
        for name in stage:
            table = stage[name]
            found[name, "changes"] = table.changes().to_arrow().to_pylist()
            found[name, "by key"] = table.changes(by_key=True).to_arrow().to_pylist()
            found[name, "now"] = table.now().to_arrow().to_pylist()
            for hours in (0, 3, 25):
                moment = f"1970-01-{1 + hours // 24:02d}T{hours % 24:02d}:30:00Z"
                try:
                    found[name, moment] = table.as_of(moment).to_arrow().to_pylist()
                    found[name, moment, "since"] = table.changes(since=moment).to_arrow().to_pylist()
                    found[name, moment, "until"] = table.changes(until=moment).to_arrow().to_pylist()
                except LockstepError as error:
                    found[name, moment] = error.code
            for entries in (1, 6):
                place = str(at(entries))
                try:
                    found[name, place] = table.as_of(place).to_arrow().to_pylist()
                except LockstepError as error:
                    found[name, place] = error.code
        return found

    def paths(self, prefix: str) -> list[str]:
        return [info.path for info in self.line.store.list(prefix)]

    def problems(self, *, deep: bool = True) -> list[tuple[str, str]]:
        return [(problem.code, problem.path) for problem in manifest.verify(self.line.store, "shop", deep=deep)]


def insert(number: int, schema: TableSchema = ORDERS, note: str = "n", **more: Any) -> Change:
    return Change(schema, "c", {"id": number, "note": note, **more})


def update(number: int, new: int | None = None) -> Change:
    return Change(ORDERS, "u", {"id": number if new is None else new, "note": "u"}, {"id": number, "note": "n"})


def delete(number: int) -> Change:
    return Change(ORDERS, "d", {"id": number, "note": "u"})


def table_named(number: int) -> TableSchema:
    return TableSchema("shop", f"t{number}", ORDERS.columns)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    """Two days: four batches and three, in several hours, with an update of a key, late data, and another table."""
    line = Line.open(tmp_path)
    with line.meta:
        made = Staged(line, tmp_path, [])
        hour = HOUR_US
        made.stage(1 * hour, Made([insert(1), insert(2), insert(1, ITEMS)], ts=1 * hour + 1))
        made.stage(2 * hour, Made([update(1)], ts=2 * hour + 5), Made([insert(3)], ts=2 * hour + 9))
        # Late: its own time is an hour before its window.
        made.stage(3 * hour, Made([insert(4)], ts=1 * hour + 30), Made([update(2, 20)], ts=3 * hour + 1))
        made.stage(4 * hour, Made([delete(1)], ts=4 * hour + 1), Made([insert(2, ITEMS)], ts=4 * hour + 2))
        made.stage(25 * hour, Made([insert(5)], ts=25 * hour + 1))
        made.stage(26 * hour, Made([insert(6)], ts=26 * hour + 1))
        made.stage(27 * hour, Made([insert(7)], ts=27 * hour + 1))
        yield made


def test_a_closed_day_becomes_one_file_per_table_and_every_reader_sees_the_same(staged: Staged) -> None:
    staged.line.done("all")
    before, parts = staged.seen(), staged.paths("changes/")
    done = staged.compact()
    assert [
        (compacted.label, compacted.batches, compacted.files_before, compacted.files, compacted.rows)
        for compacted in done.ranges
    ] == [("19700101", 4, 6, 2, 9)]
    assert staged.seen() == before
    made = staged.paths("compacted/")
    assert [path.split("/")[1:3] for path in made] == [
        ["cdc_table=shop.items", "cdc_date=1970-01-01"],
        ["cdc_table=shop.orders", "cdc_date=1970-01-01"],
    ]
    assert staged.paths("changes/") == parts
    read = [file.path for file in lockstep.open(staged.root / "stage")["shop.orders"].files()]
    assert [path for path in read if "/compacted/" in path] == [str(staged.root / "stage" / made[1])]
    assert len(read) == 1 + 3
    assert (staged.problems(), staged.problems(deep=False)) == ([], [])
    assert staged.compact().ranges == ()
    assert staged.paths("compacted/") == made


def test_values_are_compared_by_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN in a VECTOR is equal to itself; a zero that lost its sign is not what the parts have."""
    vector = TableSchema("shop", "vectors", (*ORDERS.columns, Column("v", ColumnType("vector", length=2))))
    line = Line.open(tmp_path)
    with line.meta:
        made = Staged(line, tmp_path, [])
        for hour in (1, 2, 30):
            row = {"id": hour, "note": "n", "v": [math.nan, -0.0]}
            change = Change(vector, "u", row, row)
            made.stage(hour * HOUR_US, Made([change], ts=hour * HOUR_US + 1))
        line.done("all")
        add = PartFile.add

        def unsigned(file: PartFile, batch: pa.RecordBatch) -> int:
            zeros = pa.array([[math.nan, 0.0]] * batch.num_rows, batch.column("v").type)
            return add(file, batch.set_column(batch.schema.get_field_index("v"), batch.schema.field("v"), zeros))

        with monkeypatch.context() as broken:
            broken.setattr(PartFile, "add", unsigned)
            assert refusal(made.compact).code == "stage.damaged"
        assert [(each.files_before, each.files) for each in made.compact().ranges] == [(2, 1)]


def test_the_newest_day_and_what_a_target_lacks_stay_as_they_are(staged: Staged) -> None:
    assert staged.compact().ranges == ()
    staged.line.done("first", window=(0, 2 * HOUR_US))
    done = staged.compact()
    assert (done.ranges, done.held_by) == ((), {"shop": f"t has not committed {staged.batches[1].batch_id}"})
    staged.line.done("second", window=(2 * HOUR_US, 24 * HOUR_US))
    assert [compacted.label for compacted in staged.compact().ranges] == ["19700101"]
    staged.line.done("third")
    assert staged.compact().ranges == ()
    staged.stage(50 * HOUR_US, Made([insert(8)], ts=50 * HOUR_US))
    assert [compacted.label for compacted in staged.compact().ranges] == ["19700102"]


def test_windows_are_compacted_too_and_a_later_compaction_by_day_takes_what_is_left(staged: Staged) -> None:
    staged.stage(27 * HOUR_US, Made([insert(8)], ts=27 * HOUR_US + 2))
    staged.stage(28 * HOUR_US, Made([insert(9)], ts=28 * HOUR_US + 2))
    staged.stage(50 * HOUR_US, Made([insert(10)], ts=50 * HOUR_US + 2))
    staged.line.done("all")
    before = staged.seen()
    assert [(compacted.label, compacted.batches) for compacted in staged.compact(by=By.WINDOW).ranges] == [
        ("19700102T030000Z", 2)
    ]
    assert staged.seen() == before
    assert [(compacted.label, compacted.batches) for compacted in staged.compact().ranges] == [
        ("19700101", 4),
        ("19700102", 2),
    ]
    assert staged.seen() == before
    assert staged.problems() == []


def test_a_dry_run_says_the_same_and_writes_nothing(staged: Staged) -> None:
    staged.line.done("all")
    before = staged.paths("")
    told = staged.compact(dry_run=True)
    assert staged.paths("") == before
    done = staged.compact()
    assert [replace(compacted, size_bytes=0) for compacted in done.ranges] == list(told.ranges)
    told = staged.removed(dry_run=True)
    assert [(removed.files, removed.held_by) for removed in told.removed] == [(6, "")]
    assert set(before) <= set(staged.paths(""))


def test_without_the_originals_every_reader_still_sees_the_same(staged: Staged) -> None:
    staged.line.done("all")
    before = staged.seen()
    staged.compact()
    assert staged.compact(older_than_us=60_000_000).removed == ()  # they stay for the age that was asked for
    assert len(staged.paths("changes/")) == 9
    done = staged.removed()
    assert [(removed.files, removed.held_by) for removed in done.removed] == [(6, "")]
    assert staged.seen() == before
    assert len(staged.paths("changes/")) == 3
    assert (staged.problems(), staged.problems(deep=False)) == ([], [])
    assert staged.removed().removed == ()
    assert [batch.path for batch in staged.batches] == staged.paths("manifests/")


class Killed(BaseException):
    pass


def killing(staged: Staged, monkeypatch: pytest.MonkeyPatch, step: int, work: Callable[[], object]) -> bool:
    """Whether the work came to the step: the nth call that changes the stage, before it or after it."""
    calls = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*args: Any, **options: Any) -> Any:
            calls[0] -= 1
            if calls[0] == 0:
                raise Killed
            result = call(*args, **options)
            calls[0] -= 1
            if calls[0] == 0:
                raise Killed
            return result

        return one

    with monkeypatch.context() as patch:
        for name in ("put", "put_if_absent", "delete", "open_output"):
            patch.setattr(staged.line.store, name, counted(getattr(staged.line.store, name)))
        patch.setattr("cdc_core.operations.apply.compact._DELETED_AT_ONCE", 1)
        patch.setattr("cdc_core.stage.compacting._require_sums", counted(lambda *_: None))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("step", range(1, 11))
def test_killed_at_any_step_of_a_compaction_nothing_is_lost_or_seen_twice(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    staged.line.done("all")
    before = staged.changes()
    assert killing(staged, monkeypatch, step, staged.compact)
    assert staged.changes() == before
    assert staged.problems() == []
    assert staged.line.plan("between").target("t").batches == ()
    staged.compact()
    assert staged.changes() == before
    assert len(staged.paths("compactions/")) == 1
    swept = retention.sweep(opened_line(staged.line), older_than_s=-1)
    (record,) = compactions.read(staged.line.store, ["shop"])
    assert staged.paths("compacted/") == sorted(part.path for part in record.parts)
    assert {info.path for info in swept["shop"].parts}.isdisjoint(part.path for part in record.parts)
    assert staged.changes() == before


@pytest.mark.parametrize("step", [1, 2, 5, 11, 12, 13, 14])
def test_killed_at_any_step_of_a_removal_nothing_is_lost(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    staged.line.done("all")
    before = staged.changes()
    staged.compact()
    assert killing(staged, monkeypatch, step, staged.removed)
    assert staged.changes() == before
    assert staged.problems() == []
    staged.removed()
    assert staged.changes() == before
    assert staged.paths("changes/") == sorted(part.path for batch in staged.batches[4:] for part in batch.parts)


def test_two_compactions_at_once_take_turns(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.line.done("all")
    inner: list[LockstepError] = []
    putting = staged.line.store.put_if_absent

    def meanwhile(*args: Any) -> bool:
        monkeypatch.undo()
        inner.append(refusal(staged.compact))
        inner.append(refusal(lambda: purge(staged)))
        return putting(*args)

    monkeypatch.setattr(staged.line.store, "put_if_absent", meanwhile)
    staged.compact()
    assert [(severity(type(error)), error.code) for error in inner] == [(RetryLater, "lease.held")] * 2


def test_of_two_that_both_believe_to_have_the_turn_one_counts(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.line.done("all")
    before = staged.seen()

    def expired(opened: OpenPipeline) -> nullcontext[Lease]:
        return nullcontext(opened.meta.leases.acquire(turn_of(opened.pipeline), "we", -1.0))

    monkeypatch.setattr("cdc_core.operations.apply.compact.turn_at", expired)
    monkeypatch.setattr("cdc_core.operations.apply.compact.require_turn", lambda *_: None)
    together = threading.Barrier(2, timeout=60)
    putting = staged.line.store.put_if_absent

    def both(path: str, data: bytes) -> bool:
        together.wait()
        return putting(path, data)

    monkeypatch.setattr(staged.line.store, "put_if_absent", both)
    done: list[Compacted] = []
    threads = [threading.Thread(target=lambda: done.append(staged.compact())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(compacted.ranges) for compacted in done) == [0, 1]
    monkeypatch.undo()
    assert staged.seen() == before
    retention.sweep(opened_line(staged.line), older_than_s=-1)
    assert len(staged.paths("compacted/")) == 2
    assert (staged.seen(), staged.problems()) == (before, [])


def test_of_two_ranges_that_overlap_the_first_counts(staged: Staged) -> None:
    staged.line.done("all")
    before = staged.seen()
    staged.compact()
    (record,) = compactions.read(staged.line.store, ["shop"])
    other = write(staged.line.store, staged.batches[2:6], epoch=9, created_us=0, level=1)
    staged.line.store.put(compaction_path("shop", other.begin), other.to_bytes())
    assert [compaction.begin for compaction in compactions.read(staged.line.store, ["shop"])] == [record.begin]
    assert staged.seen() == before
    staged.removed()
    assert staged.seen() == before


def purge(staged: Staged, cutoff_us: int = 1 << 60, **options: Any) -> retention.Purged:
    return retention.purge(opened_line(staged.line), cutoff_us=cutoff_us, **options)


def test_a_compacted_range_is_purged_as_a_whole(staged: Staged) -> None:
    staged.line.done("all")
    staged.compact()
    staged.removed()
    before = staged.seen()
    held = purge(staged, cutoff_us=3 * HOUR_US)
    assert (held.sources[0].batches, "is purged as a whole" in held.sources[0].held_by) == (0, True)
    assert staged.seen() == before
    done = purge(staged, cutoff_us=24 * HOUR_US)
    assert (done.sources[0].batches, done.sources[0].rows) == (4, 9)
    assert (staged.paths("compacted/"), staged.paths("compactions/")) == ([], [])
    assert len(staged.paths("changes/")) == 3
    assert staged.problems() == []
    changes = lockstep.open(staged.root / "stage")["shop.orders"].changes().to_arrow()
    assert changes.column("id").to_pylist() == [5, 6, 7]


@pytest.mark.parametrize("step", [1, 2, 3, 9, 17, 19, 21, 23])
def test_a_purge_killed_at_any_step_shows_all_or_the_horizon(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    staged.line.done("all")
    staged.compact()
    staged.removed()
    before = staged.changes()["shop.orders"]
    killing(staged, monkeypatch, step, lambda: purge(staged, cutoff_us=24 * HOUR_US))
    assert staged.changes()["shop.orders"] in (before, before[-3:])
    assert staged.problems() == []
    purge(staged, cutoff_us=24 * HOUR_US)
    assert (staged.paths("compacted/"), staged.paths("compactions/"), staged.problems()) == ([], [], [])


def test_a_horizon_within_a_range_makes_readers_use_the_parts(staged: Staged) -> None:
    """A purge that was paused for too long has moved the horizon after the range was compacted by another process."""
    staged.line.done("all")
    purge(staged, cutoff_us=3 * HOUR_US)
    expected = staged.changes()
    # The first two batches are gone: the record is as it would have been made before.
    made = write(staged.line.store, staged.batches[2:4], epoch=9, created_us=0, level=1)
    whole = replace(
        made,
        batches=tuple(replace(batch, parts=(), schemas={}) for batch in staged.batches[:4]),
        counts=made.counts * 2,
    )
    staged.line.store.put(compaction_path("shop", whole.begin), whole.to_bytes())
    assert staged.changes() == expected


def replayed(staged: Staged, run_id: str = "again", **chosen: Any) -> Any:
    return replay.plan(opened_line(staged.line), Selection("t", **chosen), run_id=run_id)


def test_a_replay_takes_the_rows_of_its_batches_from_the_compacted_files(staged: Staged) -> None:
    staged.line.done("all")
    originals = replayed(staged, "before")
    staged.compact()
    staged.removed()
    made = replayed(staged)
    (orders,) = [table for table in made.merge_sets[0].tables if table.table == "shop.orders"]
    (was,) = [table for table in originals.merge_sets[0].tables if table.table == "shop.orders"]
    fields = [(file.rows, file.batch_id, file.max_seq, file.schema_id) for file in orders.files]
    assert fields == [(file.rows, file.batch_id, file.max_seq, file.schema_id) for file in was.files]
    assert len(files_to_read(orders.files)) == 1 + 3
    assert all(file.seqs == () for file in files_to_read(orders.files))
    part = replayed(staged, "part", start_us=2 * HOUR_US, end_us=4 * HOUR_US)
    (orders,) = [table for table in part.merge_sets[0].tables if table.table == "shop.orders"]
    (file,) = files_to_read(orders.files)
    seqs = [(batch.parts[0].min_seq, batch.parts[0].max_seq) for batch in staged.batches[1:3]]
    assert (file.rows, list(file.seqs)) == (4, seqs)


def test_what_an_unfinished_replay_reads_is_not_removed(staged: Staged) -> None:
    staged.line.done("all")
    made = replayed(staged)
    staged.compact()
    (held,) = staged.removed().removed
    assert (held.files, "again is not finished" in held.held_by) == (6, True)
    assert len(staged.paths("changes/")) == 9
    staged.line.apply(made)
    staged.line.commit(made)
    assert [removed.held_by for removed in staged.removed().removed] == [""]


def test_what_another_target_has_not_committed_is_not_removed(staged: Staged) -> None:
    staged.line.done("all")
    later = staged.line.with_targets({"name": "t"}, {"name": "new"})
    later.plan("second", targets=["new"])
    staged.compact()
    assert "second has not committed them for new" in staged.removed().removed[0].held_by


def test_a_new_target_takes_compacted_batches_whose_originals_are_gone(staged: Staged) -> None:
    staged.line.done("all")
    staged.compact()
    staged.removed()
    later = staged.line.with_targets({"name": "t"}, {"name": "new"})
    made = later.plan("second", targets=["new"])
    assert made.target("new").batches == tuple(batch.batch_id for batch in staged.batches)
    for table in made.merge_sets[0].tables:
        for file in files_to_read(table.files):
            assert staged.line.store.stat(file.path) is not None


def test_a_reader_from_before_a_removal_is_told_to_read_again(staged: Staged) -> None:
    staged.line.done("all")
    stage = lockstep.open(staged.root / "stage")
    staged.compact()
    staged.removed()
    for read in (stage["shop.orders"].changes(), stage["shop.orders"].now()):
        error = refusal(read.to_arrow)
        assert (severity(type(error)), error.code) == (RetryLater, "stage.removed")
    stage.refresh()
    assert stage["shop.orders"].now().to_arrow().num_rows == 6


def test_meta_is_rebuilt_from_manifests_whose_parts_are_gone(staged: Staged, tmp_path: Path) -> None:
    staged.line.done("all")
    staged.compact()
    staged.removed()
    (tmp_path / "fresh").mkdir()
    fresh = Line.open(tmp_path / "fresh")
    fresh = Line(fresh.pipeline, fresh.meta, staged.line.store, {})
    with fresh.meta:
        lease = fresh.meta.leases.acquire("shop", "me", 60)
        fresh.meta.rebuild(lease, manifest.chain(staged.line.store, "shop"), None)
        made = fresh.plan("again")
        assert len(made.target("t").batches) == len(staged.batches)
        paths = {file.path for table in made.merge_sets[0].tables for file in table.files}
        assert all(staged.line.store.stat(path) is not None for path in paths)


def test_definitions_come_one_after_the_other(tmp_path: Path) -> None:
    """A definition that comes back after another one has two files: the order of the log decides which one is last."""
    line = Line.open(tmp_path)
    with line.meta:
        staged = Staged(line, tmp_path, [])
        for hour, schema in enumerate([ORDERS, ORDERS, WIDER, WIDER, ORDERS, ORDERS]):
            more = {"more": hour} if schema is WIDER else {}
            staged.stage(hour * HOUR_US, Made([insert(hour, schema, **more)], ts=hour * HOUR_US + 1))
        staged.stage(30 * HOUR_US, Made([insert(30)], ts=30 * HOUR_US))
        line.done("all")
        before = staged.seen()
        assert [compacted.files for compacted in staged.compact().ranges] == [3]
        assert staged.seen() == before
        staged.removed()
        assert staged.seen() == before
        # Which columns a definition had at a moment is as exact as before.
        assert "more" in lockstep.open(tmp_path / "stage")["shop.orders"].as_of("1970-01-01T03:30:00Z").schema.names
        assert "more" not in lockstep.open(tmp_path / "stage")["shop.orders"].as_of("1970-01-01T01:30:00Z").schema.names


def test_large_parts_stay_as_they_are(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.line.done("all")
    before = staged.seen()
    third = staged.batches[2].parts[0]
    monkeypatch.setattr("cdc_core.stage.compacting.LARGE_BYTES", third.size_bytes)
    staged.compact()
    (record,) = compactions.read(staged.line.store, ["shop"])
    assert third.path in [part.path for part in record.parts]
    staged.removed()
    assert staged.line.store.stat(third.path) is not None
    assert (staged.seen(), staged.problems()) == (before, [])
    purge(staged, cutoff_us=24 * HOUR_US)
    assert staged.line.store.stat(third.path) is None


def test_a_file_that_does_not_have_the_rows_of_its_parts_is_never_used(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.line.done("all")
    before = staged.changes()
    adding = PartFile.add

    def turned(self: PartFile, rows: pa.RecordBatch) -> int:
        at = rows.schema.get_field_index("note")
        return adding(self, rows.set_column(at, rows.schema.field(at), pa.array(["x"] * rows.num_rows)))

    monkeypatch.setattr(PartFile, "add", turned)
    error = refusal(staged.compact)
    assert (severity(type(error)), error.code) == (DataAtRisk, "stage.damaged")
    monkeypatch.undo()
    assert (staged.changes(), staged.paths("compactions/")) == (before, [])


def test_verify_finds_a_compacted_file_that_is_lost_or_changed(staged: Staged) -> None:
    staged.line.done("all")
    staged.compact()
    staged.removed()
    path = staged.paths("compacted/")[1]
    whole = staged.line.store.get(path)
    staged.line.store.put(path, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert staged.problems() == [("stage.damaged", path)]
    staged.line.store.delete(path)
    assert staged.problems(deep=False) == [("stage.damaged", path)]
    error = refusal(lambda: staged.seen())
    assert error.code == "stage.damaged"


def test_verify_finds_a_record_that_is_not_that_of_its_manifests(staged: Staged) -> None:
    staged.line.done("all")
    staged.compact()
    (record,) = compactions.read(staged.line.store, ["shop"])
    path = compaction_path("shop", record.begin)
    fewer = replace(record, parts=record.parts[:1])
    staged.line.store.put(path, fewer.to_bytes())
    assert staged.problems(deep=False) == [("stage.damaged", path)]
    staged.line.store.put(path, b"{")
    assert staged.problems(deep=False) == [("stage.damaged", "compactions/shop/")]
    assert refusal(lambda: staged.seen()).code == "stage.damaged"


def test_originals_are_not_removed_when_a_compacted_file_is_damaged(staged: Staged) -> None:
    staged.line.done("all")
    staged.compact()
    path = staged.paths("compacted/")[0]
    whole = staged.line.store.get(path)
    staged.line.store.put(path, whole[:-1] + b"x")
    assert refusal(staged.removed).code == "stage.damaged"
    assert len(staged.paths("changes/")) == 9
    (record,) = compactions.read(staged.line.store, ["shop"])
    assert staged.line.store.stat(originals_removed_path("shop", record.begin)) is None
