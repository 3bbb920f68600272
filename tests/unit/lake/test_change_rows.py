"""A changes table has every staged change once, whatever the order, the batches and the repeats of runs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import LessThan
from pyiceberg.table.snapshots import Operation, Summary
from pyroaring import BitMap

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.lake import compaction, data_files
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.data_files import write_deletes
from cdc_core.lake.lake_tables import MirrorRule, changes_of, create, opened
from cdc_core.lake.publication import publish
from cdc_core.lake.snapshots import FileChange, latest_schema, on_branch, pointing, snapshot_of
from cdc_core.model.batch import Manifest
from cdc_core.model.staged_columns import SEQ
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Change, Made
from tests.lab.made_lake import LOGICAL, NAME, PIPELINE, MadeLake, upsert
from tests.lab.made_stages import delete, insert, stage, truncate, update

COLUMNS = [("id", pa.int32()), ("note", pa.string())]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "stage").as_uri())


@pytest.fixture
def lake(tmp_path: Path) -> MadeLake:
    return MadeLake(tmp_path, COLUMNS, changes=True)


def rows_of(change: Change) -> list[tuple[Any, ...]]:
    """(operation, key, note) of each row that a change is."""
    key, note = change.after.get("id"), change.after.get("note")
    if change.op != "u" or change.before is None or change.before["id"] == key:
        return [(change.op, key, note)]
    return [("c", key, note), ("d", change.before["id"], change.before["note"])]


def shown(lake: MadeLake) -> list[tuple[Any, ...]]:
    return [(row["_cdc_op"], row["id"], row["note"]) for row in lake.changes()]


def drawn(some: random.Random, number: int) -> Change:
    key, text = some.randint(1, 9), f"{number}"
    return some.choice(
        [
            insert(key, text),
            delete(key, text),
            update((key, "old"), (key, text)),
            update((key, "old"), (key + 10, text)),
            truncate(),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_each_change_is_a_row_once_in_any_order_of_runs(
    seed: int, lake: MadeLake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "GROUP_ROWS", 5)
    monkeypatch.setattr(data_files, "FILE_GROUPS", 2)
    monkeypatch.setattr(compaction, "FILE_GROUPS", 4)
    some = random.Random(seed)
    made = [[drawn(some, 100 * batch + at) for at in range(some.randint(1, 8))] for batch in range(12)]
    manifests = stage(store, *([Made([change]) for change in changes] for changes in made))
    order = [*range(12), *range(12)]
    some.shuffle(order)
    brought = set[int]()
    while order:
        batches = {order.pop() for _ in range(min(len(order), some.randint(1, 4)))}
        snapshots = lake.append(store, [manifests[at] for at in sorted(batches)])
        assert bool(snapshots) == (not batches <= brought)
        publish(lake.catalog, snapshots)
        brought |= batches
        assert shown(lake) == [row for at in sorted(brought) for change in made[at] for row in rows_of(change)]
    assert len(lake.opened().live()[2].files) < 12


def test_of_two_runs_at_once_with_one_batch_one_is_published(lake: MadeLake, store: ObjectStore) -> None:
    batches = stage(store, [Made([insert(1)]), Made([update((1, "n"), (2, "n"))])])
    both = [lake.append(store, batches) for _ in range(2)]
    publish(lake.catalog, both[1])
    with pytest.raises(RetryLater) as refused:
        publish(lake.catalog, both[0])
    assert refused.value.code == "lake.compacted"
    assert shown(lake) == [("c", 1, "n"), ("c", 2, "n"), ("d", 1, "n")]
    assert lake.append(store, batches) == []


def test_a_value_that_its_type_does_not_hold_is_there_as_text_and_one_that_the_log_lacks_is_named(
    lake: MadeLake, store: ObjectStore
) -> None:
    odd = Change(insert(1).schema, "c", {"id": 1, "note": None}, literal={"note": "0000-00-00"})
    lacking = Change(insert(1).schema, "u", {"id": 1, "note": None}, {"id": 1, "note": None}, absent=["note"])
    publish(lake.catalog, lake.append(store, stage(store, [Made([odd]), Made([lacking])])))
    found = [(row["_cdc_literal"], row["_cdc_absent"], row["_cdc_source_table"]) for row in lake.changes()]
    assert found == [('{"note": "0000-00-00"}', None, "shop.orders"), (None, '["note"]', "shop.orders")]
    assert VERSION_COLUMN not in lake.changes()[0]


def test_a_changes_table_that_is_made_later_has_what_runs_and_replays_bring_from_then_on(
    tmp_path: Path, store: ObjectStore
) -> None:
    lake = MadeLake(tmp_path, COLUMNS)
    lake.apply(upsert(1, 1, "n"))
    lake.rule = MirrorRule(LOGICAL, PIPELINE, ("id",), flagged=False, changes=True)
    create(lake.catalog, NAME, lake.rule, lake.row)
    batches = stage(store, [Made([insert(1)])], [Made([insert(2)])])
    publish(lake.catalog, lake.append(store, batches[1:]))
    assert shown(lake) == [("c", 2, "n")]
    publish(lake.catalog, lake.append(store, batches))
    assert shown(lake) == [("c", 1, "n"), ("c", 2, "n")]


def grown(lake: MadeLake, store: ObjectStore) -> list[Manifest]:
    batches = stage(store, [Made([insert(1)])], [Made([insert(2)])])
    for batch in batches:
        publish(lake.catalog, lake.append(store, [batch]))
    return batches


def test_no_run_leaves_changes_out_of_a_table_that_has_the_earlier_ones(lake: MadeLake, store: ObjectStore) -> None:
    grown(lake, store)
    lake.rule = MirrorRule(LOGICAL, PIPELINE, ("id",), flagged=False)
    with pytest.raises(Refused) as refused:
        lake.opened().live()
    assert (refused.value.code, "set changes: table" in refused.value.remedy) == ("target.definition", True)
    lake.catalog.drop_table(changes_of(NAME))
    lake.apply(upsert(9, 9, "n"))


def test_a_changes_table_that_was_rolled_back_alone_is_found(lake: MadeLake, store: ObjectStore) -> None:
    batches = grown(lake, store)
    table = lake.catalog.load_table(changes_of(NAME))
    first = table.metadata.snapshots[0].snapshot_id
    commit(lake.catalog, [TableCommit(table, (), (pointing("main", first),))])
    with pytest.raises(DataAtRisk) as refused:
        lake.append(store, batches)
    assert refused.value.code == "lake.foreign_write"
    lake.catalog.drop_table(changes_of(NAME))
    create(lake.catalog, NAME, lake.rule, lake.row)
    assert opened(lake.catalog, NAME, lake.rule).live()[2].files == []
    publish(lake.catalog, lake.append(store, batches))
    assert len(shown(lake)) == 2


def test_old_changes_may_be_deleted_by_others_and_nothing_else(lake: MadeLake, store: ObjectStore) -> None:
    batches = stage(store, *([Made([insert(at), insert(at + 10)])] for at in range(4)))
    for batch in batches[:2]:
        publish(lake.catalog, lake.append(store, [batch]))
    due = lake.append(store, batches[2:3])
    begin = lake.changes()[2][SEQ]
    lake.catalog.load_table(changes_of(NAME)).delete(LessThan(SEQ, begin))  # a whole file
    with pytest.raises(RetryLater) as late:
        publish(lake.catalog, due)
    assert late.value.code == "lake.compacted"
    publish(lake.catalog, lake.append(store, batches[2:3]))
    assert [key for _, key, _ in shown(lake)] == [1, 11, 2, 12]
    live = lake.opened().live()[2]
    deletes = write_deletes(lake.opened().change_rows(live).files, live.files[0].path, BitMap([0]))
    made = snapshot_of(live, FileChange((deletes,)), latest_schema(live.table), {})
    on_branch(replace(made, summary=Summary(Operation.DELETE)), "main")
    assert len(shown(lake)) == 3
    publish(lake.catalog, lake.append(store, batches[3:]))
    assert len(shown(lake)) == 5
    publish(lake.catalog, lake.append(store, batches))  # a replay brings what the stage still has
    assert [key for _, key, _ in shown(lake)] == [0, 10, 1, 11, 2, 12, 3, 13]
    changes = lake.catalog.load_table(changes_of(NAME))
    changes.overwrite(changes.scan().to_arrow())
    with pytest.raises(DataAtRisk) as refused:
        lake.append(store, batches)
    assert refused.value.code == "lake.foreign_write"


def test_columns_follow_the_source_and_former_ones_stay(lake: MadeLake, store: ObjectStore) -> None:
    grown(lake, store)
    lake.alter([("id", pa.int64()), ("text", pa.string()), ("more", pa.int32())], [("note", "text")])
    publish(lake.catalog, lake.append(store, stage(store, *[[Made([insert(key)])] for key in (1, 2, 3)])[2:]))
    assert [(row["id"], row["text"], row["more"]) for row in lake.changes()] == [
        (1, "n", None),
        (2, "n", None),
        (3, None, None),
    ]
