"""Erasure from a lake's mirror, with its cuts on the stage and in the lake, after every kill."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from cdc_core.config import IcebergTarget
from cdc_core.errors import Refused, UsageError
from cdc_core.lake import cut_table, data_files, lake_erasure
from cdc_core.lake.lake_tables import changes_of
from cdc_core.lake.publication import branch_of, publish
from cdc_core.lake.snapshots import PLAN, RUN
from cdc_core.model.cut import Cut, CutTable
from cdc_core.operations.apply.retention import purge
from cdc_core.operations.forget import erase_lake, forgetting
from cdc_core.operations.forget.forgetting import forget
from cdc_core.operations.lake.maintain import maintain
from cdc_core.stage import cuts, erasures
from tests.integration.test_canaries import seen, written
from tests.lab.made_lake import MadeLake, Winner, delete, upsert
from tests.lab.made_line import Line
from tests.lab.opened import opened_line
from tests.lab.refusals import raises
from tests.unit.operations.apply.test_compact import Staged, staged
from tests.unit.operations.forget.test_forgetting import ORDERS, DyingStore, Killed, lives

__all__ = ["staged"]


@dataclass
class Lake:
    """A pipeline whose changes a lake has, mirror and cuts."""

    one: Staged
    made: MadeLake
    us: int = field(default_factory=lambda: time.time_ns() // 1000)

    @property
    def opened(self) -> Any:
        return opened_line(self.one.line)

    def apply(self, *changes: Winner) -> None:
        self.us += 1
        target, store, run = self.one.line.pipeline.targets[0], self.one.line.store, f"run_{self.us}"
        cut_table.ensure(self.made.catalog, target, "line/lake")
        done = self.made.attempt(*changes, run=run)
        mirror = done.snapshots[-1].snapshot
        cut = Cut(run, "lake", self.us, {}, (CutTable(ORDERS, "shop.t", mirror, ()),))
        table = cut_table.opened(self.made.catalog, target)
        of_cut = cut_table.with_cut(table, cut, {RUN: run, PLAN: "1"}, branch_of(run))
        cuts.prepare(store, cut, of_cut.snapshot)
        publish(self.made.catalog, [*done.snapshots, of_cut])
        cuts.complete(store, "lake", {of_cut.snapshot})

    def at_cuts(self) -> list[list[dict[str, Any]]]:
        """What readers see at each cut, without the row."""
        named = [cut.tables[0].snapshot for _, cut in cuts.newest_first(self.one.line.store, "lake")]
        shown = self.made.catalog.load_table("shop.lockstep_cuts").scan().to_arrow().sort_by("published_at")
        assert shown["snapshot_id"].to_pylist() == named[::-1]
        rows = [
            self.made.table().scan(snapshot_id=snapshot_id).to_arrow().sort_by("id").to_pylist()
            for snapshot_id in named
            if snapshot_id
        ]
        return [[row for row in each if row["id"] != 9] for each in rows]

    def erase(self, **options: Any) -> Any:
        return forget(self.opened, ORDERS, options.pop("keys", ["id=9"]), **{"although_it_exists": True, **options})

    def left(self) -> list[str]:
        return seen(written(self.one.root), "canary")


@pytest.fixture
def lake(staged: Staged) -> Iterator[Lake]:
    """The life of row 9, applied state by state."""
    lived = lives(staged)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lived.root}/catalog.db",
        "warehouse": (lived.root / "warehouse").as_uri(),
    }
    rule = {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop"}
    target = IcebergTarget.model_validate({**rule, "tables": {ORDERS: {"table": "t", "changes": "table"}}})
    line = replace(lived.line, pipeline=lived.line.pipeline.model_copy(update={"targets": (target,)}))
    columns = [("id", pa.int64()), ("note", pa.string())]
    made = MadeLake(lived.root, columns, logical=ORDERS, owner="line/lake", changes=True)
    found = Lake(replace(lived, line=line), made)
    found.apply(*(upsert(1, number, "n") for number in range(10, 30)))
    found.apply(upsert(2, 9, "canary-old"), upsert(2, 10, "m"))
    found.apply(upsert(3, 9, "canary-new"))
    found.apply(delete(4, 9, "canary-new"), upsert(4, 11, "m"))
    publish(made.catalog, made.append(line.store, lived.batches))
    line.meta.records.seed("lake", list(line.meta.batches.find("shop")))
    yield found
    made.catalog.engine.dispose()


def test_a_row_goes_from_the_lake_and_each_cut_stays_without_it(lake: Lake) -> None:
    before, changes = lake.at_cuts(), lake.made.changes()
    assert len(before) == 4
    listed = lake.erase(dry_run=True)
    assert {"lake file", "lake snapshot", "staged"} == {place.kind for place in listed.places}
    assert lake.at_cuts() == before
    assert lake.left()
    assert lake.erase().places == listed.places
    assert lake.left() == []
    assert lake.at_cuts() == before
    assert lake.made.changes() == [row for row in changes if row["id"] != 9] != changes
    assert maintain(lake.opened, lake.one.line.pipeline.targets[0]).problems == ()
    lake.apply(upsert(6, 12, "m"))
    assert lake.at_cuts()[1:] == before
    assert lake.erase().places == ()


def test_a_row_that_the_lake_shows_is_erased_only_where_it_is_wanted(lake: Lake) -> None:
    lake.apply(upsert(5, 9, "now"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forgetting, "ask_sources", lambda *_, **__: None)  # it does not have the row
        with raises(Refused, "stage.not_committed", match="'lake' still has 1 row"):
            lake.erase(although_it_exists=False)
    lake.erase()
    assert [row["note"] for row in lake.made.scanned() if row["id"] == 9] == ["now"]
    assert lake.left() == []


def test_a_table_of_others_that_has_the_name_of_a_changes_table_is_left_alone(lake: Lake) -> None:
    name = changes_of(lake.made.table().name()[-2:])
    lake.made.catalog.drop_table(name)
    theirs = lake.made.catalog.create_table(name, pa.schema([("id", pa.int64()), ("note", pa.string())]))
    theirs.append(pa.table({"id": [9], "note": ["theirs"]}))
    with raises(Refused, "target.existing", match="t__changes was not made by Lockstep"):
        lake.erase()
    assert lake.made.catalog.load_table(name).scan().to_arrow().num_rows == 1


def test_rows_whose_changes_were_purged_go_from_the_lake(lake: Lake) -> None:
    lake.apply(upsert(6, 77, "canary-purged"))
    lake.apply(delete(7, 77, "canary-purged"))
    for keys in (["id=78"], ["id=77", "id=78"], ["id=9", "id=78"]):
        with raises(UsageError, "usage.unknown_name", match="the key id=78"):
            lake.erase(keys=keys)
    lake.erase(keys=["id=77", "id=9"])
    assert lake.left() == []


def test_a_row_that_changed_its_key_goes_under_both_keys_from_a_lake_whose_stage_is_purged(lake: Lake) -> None:
    assert purge(lake.opened, cutoff_us=1 << 60).sources[0].batches == len(lake.one.batches) - 1
    for given, other in (("id=2", "id=20"), ("id=20", "id=2")):
        with raises(Refused, "stage.key") as caught:
            lake.erase(keys=[given])
        assert caught.value.remedy.endswith(f"--key {other}")
    changes = lake.made.changes()
    lake.erase(keys=["id=2", "id=20"])
    assert lake.made.changes() == [row for row in changes if row["id"] not in (2, 20)] != changes


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.matrix)])
def test_killed_at_any_step_the_same_command_ends_it(
    lake: Lake, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, every: int
) -> None:
    before, root = lake.at_cuts(), lake.one.root
    targets = [target.model_dump(mode="json", exclude_unset=True) for target in lake.one.line.pipeline.targets]
    lake.made.catalog.engine.dispose()
    lake.one.line.meta.close()
    kept = tmp_path_factory.mktemp("kept") / "lake"
    shutil.copytree(root, kept)
    steps, ended = 0, False
    while not ended:
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        line = Line.open(root, targets=targets)
        dying = DyingStore(line.store, steps)
        with line.meta:
            again = replace(lake, one=replace(lake.one, line=line))
            with pytest.MonkeyPatch.context() as patched:
                mortal(patched, dying.step)
                try:
                    replace(again, one=replace(again.one, line=replace(line, store=dying))).erase()
                    ended = True
                except Killed:
                    pass
            again.erase()
            assert again.left() == [], steps
            assert again.at_cuts() == before, steps
            assert list(erasures.unended(line.store)) == []
            assert again.one.problems() == [], steps
        lake.made.catalog.engine.dispose()
        steps += every
    assert steps > 40


def mortal(patched: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """Dies before or after a file of the lake is written or deleted, a commit, and each step of the cuts."""

    def dying(place: Any, name: str) -> None:
        function = getattr(place, name)

        def call(*args: Any, **named: Any) -> Any:
            step()
            found = function(*args, **named)
            step()
            return found

        patched.setattr(place, name, call)

    dying(PyArrowFileIO, "delete")
    for place, name in ((lake_erasure, "commit"), (cut_table, "commit"), (data_files, "_write_file")):
        dying(place, name)
    for name in ("appoint", "expire"):
        dying(erase_lake, name)
