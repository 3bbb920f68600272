"""No cut is made of one that is not the last, and a publication that was killed is completed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import event
from sqlalchemy.pool import Pool

from cdc_core.config import IcebergTarget
from cdc_core.errors import RetryLater
from cdc_core.lake import cut_table
from cdc_core.lake.publication import LakeSnapshot, branch_of, publish
from cdc_core.lake.snapshots import PLAN, RUN, said
from cdc_core.model.cut import Cut, CutSource, CutTable
from cdc_core.model.position import Position
from cdc_core.model.windows import from_us
from cdc_core.operations.open_pipeline import OpenCatalogs
from cdc_core.stage import cuts
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_store

HOUR_US = 3_600_000_000


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTarget:
    monkeypatch.setenv("LAKE", f"sqlite:///{tmp_path}/catalog.db")
    catalog = {"type": "sql", "uri": "env:LAKE", "warehouse": (tmp_path / "warehouse").as_uri()}
    return IcebergTarget.model_validate(
        {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop", "tables": {"*": {}}}
    )


@pytest.fixture
def catalog(target: IcebergTarget) -> Iterator[Catalog]:
    with OpenCatalogs() as catalogs:
        found = catalogs.of(target)
        cut_table.ensure(found, target, "line/lake")
        yield found


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "stage").as_uri())


def cut(run: str, made_us: int) -> Cut:
    tables = CutTable("a", "shop.a", 1, ()), CutTable("b", "shop.b", None, ("its copy", "a batch"))
    return Cut(run, "lake", made_us, {}, tables)


def made(catalog: Catalog, target: IcebergTarget, *cuts_: Cut) -> list[LakeSnapshot]:
    """All of them made of the same last cut."""
    table = cut_table.opened(catalog, target)
    return [
        cut_table.with_cut(table, shown_cut, {RUN: shown_cut.run_id, PLAN: "1"}, branch_of(shown_cut.run_id))
        for shown_cut in cuts_
    ]


def published(catalog: Catalog, target: IcebergTarget) -> set[int]:
    return {snapshot.snapshot_id for snapshot in cut_table.shown(cut_table.opened(catalog, target))}


def runs(catalog: Catalog, target: IcebergTarget) -> list[str]:
    rows = cut_table.opened(catalog, target).scan().to_arrow()
    return sorted(rows["run"].to_pylist())


def test_of_two_cuts_that_are_made_of_one_the_second_is_made_again(
    catalog: Catalog, target: IcebergTarget, store: ObjectStore
) -> None:
    first, second = made(catalog, target, cut("a", HOUR_US), cut("b", HOUR_US + 1))
    cuts.prepare(store, cut("a", HOUR_US), first.snapshot)
    cuts.prepare(store, cut("b", HOUR_US + 1), second.snapshot)
    assert publish(catalog, [first])
    with pytest.raises(RetryLater) as refused:
        publish(catalog, [second])
    assert refused.value.code == "lake.compacted"
    assert runs(catalog, target) == ["a", "a"]
    assert cuts.newest(store, "lake") is None
    cuts.complete(store, "lake", published(catalog, target))
    assert cuts.newest(store, "lake") == cut("a", HOUR_US)
    cuts.complete(store, "lake", published(catalog, target), before_us=HOUR_US + 2)
    assert [info.path for info in store.list(cuts.CUTS) if "prepared" in info.path] == []
    assert cuts.newest(store, "lake") == cut("a", HOUR_US)
    (again,) = made(catalog, target, cut("b", HOUR_US + 3))
    assert publish(catalog, [again])
    assert runs(catalog, target) == ["a", "a", "b", "b"]


def test_the_lake_says_what_a_table_of_a_cut_lacks(catalog: Catalog, target: IcebergTarget) -> None:
    publish(catalog, made(catalog, target, cut("a", HOUR_US)))
    rows = cut_table.opened(catalog, target).scan().to_arrow().to_pylist()
    assert {row["mirror"]: row["lacks"] for row in rows} == {"shop.a": None, "shop.b": "its copy; a batch"}


def test_cuts_that_nobody_keeps_leave_the_lake_once_they_are_old(catalog: Catalog, target: IcebergTarget) -> None:
    for number, run in enumerate("abcdefghij", 1):
        publish(catalog, made(catalog, target, cut(run, number * HOUR_US)))
    last = said(cut_table.shown(cut_table.opened(catalog, target))[0], RUN)
    assert cut_table.prune(cut_table.opened(catalog, target), {"b", "e"}, 9 * HOUR_US) == 12
    assert runs(catalog, target) == ["b", "b", "e", "e", "i", "i", "j", "j"]
    assert said(cut_table.shown(cut_table.opened(catalog, target))[0], RUN) == last
    before = cut_table.opened(catalog, target).metadata_location
    assert cut_table.prune(cut_table.opened(catalog, target), {"b", "e"}, 9 * HOUR_US) == 0
    assert cut_table.opened(catalog, target).metadata_location == before
    publish(catalog, made(catalog, target, cut("k", 11 * HOUR_US)))
    assert len(runs(catalog, target)) == 10


def test_no_cut_is_lost_that_is_published_while_others_are_pruned(catalog: Catalog, target: IcebergTarget) -> None:
    publish(catalog, made(catalog, target, cut("a", HOUR_US)))
    seen = cut_table.opened(catalog, target)
    publish(catalog, made(catalog, target, cut("b", 2 * HOUR_US)))
    with pytest.raises(CommitFailedException):
        cut_table.prune(seen, set(), 2 * HOUR_US)
    assert runs(catalog, target) == ["a", "a", "b", "b"]


def test_an_operation_opens_a_catalog_once_and_closes_it(target: IcebergTarget) -> None:
    counts = {"connect": 0, "close": 0}
    count = {what: lambda *_, what=what: counts.update({what: counts[what] + 1}) for what in counts}
    for what, listener in count.items():
        event.listen(Pool, what, listener)
    try:
        with OpenCatalogs() as catalogs:
            first = catalogs.of(target)
            assert catalogs.of(target) is first
            cut_table.ensure(first, target, "line/lake")
            assert counts == {"connect": 1, "close": 0}
        assert counts == {"connect": 1, "close": 1}
    finally:
        for what, listener in count.items():
            event.remove(Pool, what, listener)


def test_a_cut_has_all_commits_up_to_where_the_slowest_source_is(catalog: Catalog, target: IcebergTarget) -> None:
    ends = {"fast": 5 * HOUR_US, "slow": 3 * HOUR_US}
    sources = {name: CutSource(Position(0, "binlog.000001", 4), "", us, {}) for name, us in ends.items()}
    publish(catalog, made(catalog, target, Cut("one", "lake", HOUR_US, sources, cut("one", HOUR_US).tables)))
    rows = cut_table.opened(catalog, target).scan().to_arrow()
    assert rows["committed_at"].to_pylist() == [from_us(3 * HOUR_US)] * 2
