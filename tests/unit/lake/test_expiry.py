"""What a lake forgets, and what it must keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary

from cdc_core.config import KeptCuts
from cdc_core.lake.data_files import write_rows
from cdc_core.lake.expiry import forget, kept_cuts, remove_orphans, tag_of
from cdc_core.lake.lake_schema import first_schema
from cdc_core.lake.lake_tables import place_of
from cdc_core.lake.publication import branch_of
from cdc_core.lake.snapshots import (
    NUMBER,
    RUN,
    FileChange,
    LiveFiles,
    head,
    on_branch,
    pointing,
    snapshot_of,
    table_files,
)
from cdc_core.model.cut import Cut

DAY_US = 86_400_000_000


def cut(made_us: int) -> Cut:
    return Cut(f"run-{made_us}", "lake", made_us, {}, ())


def test_a_cut_of_each_hour_and_of_each_day_is_kept_and_the_newest() -> None:
    now = 40 * DAY_US
    every_ten_minutes = [cut(now - minutes * 60_000_000) for minutes in range(0, 40 * 24 * 60, 10)]
    kept = kept_cuts(every_ten_minutes, KeptCuts(hourly="48h", daily="35d"), now)
    assert kept[-1].made_us == now
    ages_h = [(now - kept_cut.made_us) / 3_600_000_000 for kept_cut in kept]
    assert sum(age <= 48 for age in ages_h) == pytest.approx(49, abs=1)
    assert sum(age > 48 for age in ages_h) == pytest.approx(33, abs=1)
    assert max(ages_h) <= 35 * 24


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("shop")
    columns = [pa.field("id", pa.int64())]
    location, place = place_of(catalog, ("shop", "t"))
    made = catalog.create_table(
        "shop.t", first_schema(columns, ["id"]), location, properties={"format-version": "2", **place}
    )
    for number in range(1, 6):
        publish(made.refresh(), number)
    yield made.refresh()
    catalog.engine.dispose()


def publish(table: Table, number: int, branch: str = "main") -> None:
    """A run that replaces the row by another one."""
    live = LiveFiles(table, head(table), ("id",))
    files = table_files(table, table.schema(), ("id",))
    rows = pa.table({"id": [number], "_cdc_version": [bytes([number])]}, schema=files.columns)
    change = FileChange(tuple(write_rows(files, rows)), frozenset(live.data))
    said = {RUN: f"run-{number}", NUMBER: str(number)}
    on_branch(snapshot_of(live, change, table.schema(), said), branch)


def ids(table: Table, snapshot: int | None = None) -> list[int]:
    return table.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist()


def data_files(tmp_path: Path) -> int:
    return len(list((tmp_path / "shop").glob("t-*/data/*.parquet")))


def test_what_readers_see_and_kept_cuts_stay_and_the_rest_goes_with_its_files(table: Table, tmp_path: Path) -> None:
    later = table.metadata.snapshots[-1].timestamp_ms * 1000 + DAY_US
    kept = table.metadata.snapshots[1].snapshot_id
    gone = forget(table, {tag_of(cut(later)): kept}, later)
    assert (gone.snapshots, data_files(tmp_path)) == (3, 2)
    table.refresh()
    assert ids(table) == [5]
    assert ids(table, kept) == [2]
    again = forget(table, {}, later)
    assert (again.snapshots, data_files(tmp_path)) == (1, 1)
    assert ids(table.refresh()) == [5]
    assert forget(table, {}, later).files == 0


def test_a_kept_cut_needs_a_tag_once_readers_see_another_snapshot(table: Table) -> None:
    later = table.metadata.snapshots[-1].timestamp_ms * 1000 + DAY_US
    tags = {tag_of(cut(later)): table.metadata.snapshots[-1].snapshot_id}
    forget(table, tags, later)
    assert set(table.refresh().metadata.refs) == {"main"}
    publish(table, 6)
    forget(table.refresh(), tags, later)
    assert set(table.refresh().metadata.refs) == {"main", *tags}
    assert ids(table, *tags.values()) == [5]


def test_nothing_goes_within_an_hour(table: Table, tmp_path: Path) -> None:
    soon = table.metadata.snapshots[-1].timestamp_ms * 1000 + 1_000_000
    assert forget(table, {}, soon).snapshots == 0
    assert data_files(tmp_path) == 5


def test_our_newest_snapshot_stays_below_those_of_others_that_compact(table: Table) -> None:
    live = LiveFiles(table, head(table), ("id",))
    made = snapshot_of(live, FileChange(), table.schema(), {})
    on_branch(replace(made, summary=Summary(Operation.REPLACE)), "main")
    table.refresh()
    forget(table, {}, table.metadata.snapshots[-1].timestamp_ms * 1000 + DAY_US)
    left = table.refresh().metadata.snapshots
    assert [snapshot.summary[RUN] if snapshot.summary else None for snapshot in left] == ["run-5", None]


def test_the_branch_of_a_killed_run_goes_after_days(table: Table, tmp_path: Path) -> None:
    killed = branch_of("run-9")
    publish(table, 9, branch=killed)
    table.refresh()
    later = table.metadata.snapshots[-1].timestamp_ms * 1000
    assert forget(table, {}, later + DAY_US).branches == 0
    assert killed in table.refresh().metadata.refs
    assert forget(table, {}, later + 4 * DAY_US).branches == 1
    assert set(table.refresh().metadata.refs) == {"main"}
    assert (ids(table), data_files(tmp_path)) == ([5], 1)


def test_branches_and_tags_of_others_stay(table: Table) -> None:
    publish(table, 9, branch="lockstep_of_somebody")
    snapshot = table.refresh().metadata.snapshots[-1]
    for tag in ("lockstep-cut-mine", "2026-q3"):
        table.catalog.commit_table(table.refresh(), (), (pointing(tag, snapshot.snapshot_id, "tag"),))
    assert forget(table.refresh(), {}, snapshot.timestamp_ms * 1000 + 4 * DAY_US).branches == 0
    assert set(table.refresh().metadata.refs) == {"main", "lockstep_of_somebody", "lockstep-cut-mine", "2026-q3"}


def stray_file(folder: str) -> Path:
    stray = Path(folder.removeprefix("file://")) / "data" / "stray.parquet"
    stray.write_bytes(b"x")
    return stray


def test_files_that_nothing_names_stay_where_the_folder_may_be_of_others(table: Table) -> None:
    other = table.catalog.create_table("shop.u", table.schema(), properties={"format-version": "2"})
    publish(other, 1)
    stray = stray_file(other.location())
    assert remove_orphans(other.refresh(), int(stray.stat().st_mtime_ns // 1000) + 4 * DAY_US) == 0
    assert stray.exists()


def test_files_that_nothing_names_go_once_they_are_old(table: Table) -> None:
    stray = stray_file(table.location())
    now_us = int(stray.stat().st_mtime_ns // 1000)
    assert remove_orphans(table, now_us + DAY_US) == 0
    assert remove_orphans(table, now_us + 4 * DAY_US) == 1
    assert not stray.exists()
    assert ids(table) == [5]
