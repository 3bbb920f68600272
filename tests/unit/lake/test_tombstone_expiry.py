"""Tombstones go once no older change can come; and one that comes all the same revives nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.errors import RetryLater
from cdc_core.lake import data_files
from cdc_core.lake.publication import publish
from cdc_core.lake.tombstone_expiry import forget_tombstones
from tests.lab.made_lake import MadeLake, Winner, delete, upsert
from tests.unit.lake.test_mirror_model import last_of, winners_of

COLUMNS = [("id", pa.int64()), ("v", pa.int64())]


@pytest.fixture
def lake(tmp_path: Path) -> MadeLake:
    return MadeLake(tmp_path, COLUMNS)


def buried(lake: MadeLake) -> set[Any]:
    return {row["id"] for row in lake.scanned(tombstones=True)}


@pytest.mark.parametrize("seed", range(4))
def test_a_mirror_stays_right_without_its_old_tombstones(
    seed: int, lake: MadeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 5)
    monkeypatch.setattr(data_files, "FILE_GROUPS", 2)
    dice = random.Random(seed)
    log = []
    for seq in range(1, 400):
        op = dice.choices(["u", "d", "t"], [60, 38, 2 if seed else 0])[0]
        log.append(Winner(seq, None if op == "t" else (dice.randint(0, 60), seq), op, ts_us=dice.randint(0, 9)))
    batches = [log[at : at + 25] for at in range(0, len(log), 25)]
    begin = 0
    for number in range(len(batches)):
        lake.apply(*winners_of(batches[number]))
        if dice.random() < 0.5:
            begin = dice.randint(begin, batches[number][0].seq)
            before = buried(lake)
            removed = forget_tombstones(lake.table(tombstones=True), {"one": begin})
            assert removed == len(before) - len(buried(lake)) >= 0
        for other in dice.choices(range(number + 1), k=dice.randint(0, 2)):
            lake.apply(*winners_of(batches[other]))
        known = [change for batch in batches[: number + 1] for change in batch]
        emptied = max((change.seq for change in known if change.row is None), default=0)
        last = last_of(change for change in known if change.seq > emptied)
        rows = {key[0]: change.row[1] for key, change in last.items() if change.op == "u" and change.row}
        assert {row["id"]: row["v"] for row in lake.scanned()} == rows
    forget_tombstones(lake.table(tombstones=True), {"one": 1000})
    assert len(buried(lake)) <= 1 + len(last) // 4


def test_few_old_ones_stay_and_so_do_those_of_several_sources(lake: MadeLake) -> None:
    lake.apply(*(delete(seq, seq, 0) for seq in range(1, 101)))
    assert forget_tombstones(lake.table(tombstones=True), {"one": 20}) == 0
    assert forget_tombstones(lake.table(tombstones=True), {"two": 90}) == 0
    assert forget_tombstones(lake.table(tombstones=True), {"one": 51}) == 49
    assert buried(lake) == {None, *range(51, 101)}
    assert forget_tombstones(lake.table(tombstones=True), {"one": 51}) == 0
    lake.apply(Winner(200, (200, 0), "d", source="two"))
    assert forget_tombstones(lake.table(tombstones=True), {"one": 300, "two": 300}) == 0


def test_a_run_that_began_before_does_not_publish_over_it(lake: MadeLake) -> None:
    lake.apply(*(delete(seq, seq, 0) for seq in range(10, 20)))
    late = lake.attempt(upsert(5, 15, 7), upsert(50, 16, 7))
    assert forget_tombstones(lake.table(tombstones=True), {"one": 40}) == 9
    with pytest.raises(RetryLater):
        publish(lake.catalog, late.snapshots)
    lake.apply(upsert(5, 15, 7), upsert(50, 16, 7))
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(16, 7)]


def test_they_stay_where_they_are_compared_by_time_with_what_another_source_may_still_bring(lake: MadeLake) -> None:
    lake.apply(*(Winner(seq, (seq, 0), "d", ts_us=100) for seq in range(1, 101)))
    assert forget_tombstones(lake.table(tombstones=True), {"one": 200, "two": 0}) == 0
    lake.apply(Winner(7, (500, 1), source="two", ts_us=50))
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(500, 1)]
    assert forget_tombstones(lake.table(tombstones=True), {"one": 200}) == 99
