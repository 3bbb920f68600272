"""The files of a mirror stay few, and what is deleted in them little, without anybody's maintenance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table

from cdc_core.lake import compaction, data_files, truncated
from cdc_core.lake.compaction import DELETED_SHARE, MERGED_FILES
from cdc_core.lake.lake_schema import DELETED
from cdc_core.lake.snapshots import head
from cdc_core.model.places import in_order
from tests.lab.made_lake import MadeLake, Winner, delete, deleted_share, truncate, upsert

COLUMNS = [("id", pa.int64()), ("v", pa.string())]
RUNS = 144  # a day of one every ten minutes


@pytest.fixture
def lake(tmp_path: Path) -> MadeLake:
    return MadeLake(tmp_path, COLUMNS)


def rows(first: int, count: int, seq: int = 1, value: str = "x") -> list[Winner]:
    return [upsert(seq, at, value) for at in range(first, first + count)]


def require_summary_of_its_manifests(table: Table) -> None:
    snapshot = head(table)
    assert snapshot is not None
    assert snapshot.summary is not None
    data = deletes = records = positions = size = 0
    changed = {"added": 0, "deleted": 0}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            file = entry.data_file
            assert file.content != DataFileContent.EQUALITY_DELETES
            is_data = file.content == DataFileContent.DATA
            if entry.status == ManifestEntryStatus.DELETED:
                changed["deleted"] += is_data
                continue
            changed["added"] += is_data and entry.status == ManifestEntryStatus.ADDED
            assert len(table.io.new_input(file.file_path)) == file.file_size_in_bytes
            size += file.file_size_in_bytes
            data, deletes = data + is_data, deletes + (not is_data)
            records += file.record_count if is_data else 0
            positions += 0 if is_data else file.record_count
    told = {name: int(snapshot.summary[name] or 0) for name in snapshot.summary.additional_properties if "-" in name}
    assert told["total-data-files"] == data
    assert told["total-delete-files"] == deletes
    assert told["total-records"] == records
    assert told["total-position-deletes"] == positions
    assert told["total-files-size"] == size
    assert told["total-equality-deletes"] == 0
    assert told.get("added-data-files", 0) == changed["added"]
    assert told.get("deleted-data-files", 0) == changed["deleted"]


@pytest.mark.slow
def test_many_small_runs_leave_few_files(lake: MadeLake) -> None:
    dice, expected, most = random.Random(7), dict[int, str](), 0
    for run in range(1, RUNS + 1):
        changes = {}
        for _ in range(12):
            key = dice.randrange(900)
            changes[key] = delete(run, key, None) if dice.random() < 0.2 else upsert(run, key, f"{run}")
            expected.pop(key, None)
            expected |= {key: f"{run}"} if changes[key].op == "u" else {}
        lake.apply(*changes.values())
        for tombstones in (False, True):
            files = lake.live(tombstones=tombstones).files
            most = max(most, len(files))
            assert all(len(file.deletes) <= 1 and deleted_share(file) <= DELETED_SHARE for file in files)
        if run % 12 == 0:
            require_summary_of_its_manifests(lake.table())
            require_summary_of_its_manifests(lake.table(tombstones=True))
            assert {row["id"]: row["v"] for row in lake.scanned()} == expected
    assert most <= MERGED_FILES + 1


def test_a_file_that_loses_more_than_a_fifth_is_written_again(lake: MadeLake) -> None:
    lake.apply(*rows(0, 100))
    (first,) = lake.live().files
    lake.apply(*(delete(2, at, None) for at in range(20)))
    (kept,) = lake.live().files
    assert (kept.path, kept.deleted, len(kept.deletes)) == (first.path, 20, 1)
    lake.apply(*(delete(3, at, None) for at in range(19, 21)))
    (again,) = lake.live().files
    assert again.path != first.path
    assert (again.rows, again.deleted, again.deletes) == (79, 0, ())
    assert not lake.live().deletes
    require_summary_of_its_manifests(lake.table())


def test_deletes_of_a_file_replace_those_that_it_had(lake: MadeLake) -> None:
    lake.apply(*rows(0, 100))
    found = []
    for run in range(5):
        lake.apply(delete(2 + run, run * 2, None))
        (file,) = lake.live().files
        found.append((file.rows, file.deleted, len(file.deletes)))
        require_summary_of_its_manifests(lake.table())
    assert found == [(100, count, 1) for count in range(1, 6)]


def test_a_file_of_which_nothing_is_left_disappears(lake: MadeLake) -> None:
    lake.apply(*rows(0, 10))
    lake.apply(*rows(100, 10))
    lake.apply(*(delete(2, at, None) for at in range(10)))
    assert [file.rows for file in lake.live().files] == [10]
    lake.apply(*(delete(3, at, None) for at in range(100, 110)))
    assert lake.live().files == []
    assert lake.scanned() == []
    require_summary_of_its_manifests(lake.table())
    lake.apply(*rows(0, 3, seq=4))
    assert len(lake.scanned()) == 3
    assert len(lake.scanned(tombstones=True)) == 17


def test_a_first_run_may_have_deletes_alone(lake: MadeLake) -> None:
    lake.apply(delete(1, 1, None))
    assert lake.scanned() == []
    assert [row["id"] for row in lake.scanned(tombstones=True)] == [1]
    lake.apply(upsert(2, 1, "x"))
    assert [row["id"] for row in lake.scanned()] == [1]
    assert lake.scanned(tombstones=True) == []


def test_files_that_cannot_become_fewer_are_left_alone(lake: MadeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 13)
    lake.apply(*rows(0, 1200))
    before = {file.path for file in lake.live().files}
    assert len(before) == 12
    for run in range(12):
        lake.apply(*rows(5000 + run, 1, seq=2 + run))
        assert before <= {file.path for file in lake.live().files}


def test_rows_of_many_bytes_that_compress_well_are_merged_within_bounds(
    lake: MadeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "GROUP_BYTES", 100_000)
    monkeypatch.setattr(data_files, "FILE_GROUPS", 4)
    monkeypatch.setattr(compaction, "FILE_GROUPS", 4)
    lake.apply(*rows(0, 120, value="x" * 50_000))  # 6 MB that are 60 KB in files
    before = {file.path for file in lake.live().files}
    assert len(before) >= 15
    for run in range(9):
        lake.apply(*rows(5000 + run, 1, seq=2 + run))
    assert before <= {file.path for file in lake.live().files}


@pytest.mark.parametrize("flagged", [False, True])
def test_a_large_file_of_others_is_written_again_in_parts(
    flagged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = MadeLake(tmp_path, COLUMNS, flagged=flagged)
    with pytest.MonkeyPatch.context() as other:
        other.setattr(data_files, "GROUP_ROWS", 10)
        other.setattr(data_files, "FILE_GROUPS", 1000)
        lake.apply(*rows(0, 400, value="x" * 1000))
    assert [file.groups for file in lake.live().files] == [40]
    monkeypatch.setattr(data_files, "GROUP_BYTES", 15_000)
    monkeypatch.setattr(data_files, "FILE_GROUPS", 4)
    sizes: list[int] = []

    def spied(found: pa.Table, key: Sequence[str]) -> pa.Table:
        sizes.append(found.nbytes)
        return in_order(found, key)

    for module in (compaction, truncated):
        monkeypatch.setattr(module, "in_order", spied)
    lake.apply(*(delete(2, at, None) for at in range(0, 400, 4)))
    assert (sum(sizes) > 300_000, max(sizes) <= 60_000) == (True, True)
    assert {row["id"] for row in lake.scanned() if not row.get(DELETED)} == {at for at in range(400) if at % 4}
    sizes.clear()
    lake.apply(truncate(3))
    assert (sum(sizes) > 300_000, max(sizes, default=0) <= 60_000) == (flagged, True)
    assert [row["id"] for row in lake.scanned() if not row.get(DELETED)] == []
    assert len(lake.scanned()) == 400 * flagged


def test_long_texts_in_one_row_group_hide_no_row_of_another(lake: MadeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 10)
    long = [upsert(1, at, "z" * 5000) for at in range(10)]  # Parquet's writer keeps no bounds of these
    lake.apply(*long, *rows(10, 10, value="b"))
    found = lake.table().scan(row_filter=GreaterThanOrEqual("v", "y")).to_arrow()
    assert found.num_rows == 10
