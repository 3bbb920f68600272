"""What readers see changes for all tables of a run at once, for one attempt of those at the same time, and never over
what somebody else has written."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate
from sqlalchemy import create_engine, text

from cdc_core.config import IcebergTarget
from cdc_core.errors import DataAtRisk, RetryLater
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.compaction import Rewrite, rewritten
from cdc_core.lake.lake_ledger import published_runs
from cdc_core.lake.lake_schema import DELETED
from cdc_core.lake.lake_tables import create, tombstones_of
from cdc_core.lake.publication import publish
from cdc_core.lake.snapshots import NUMBER, FileChange, head, on_branch, pointing, said, snapshot_of, table_files
from tests.lab.made_lake import LOGICAL, NAME, Applied, MadeLake, delete, truncate, upsert

COLUMNS = [("id", pa.int64()), ("v", pa.int64())]


@pytest.fixture
def lake(tmp_path: Path) -> MadeLake:
    return MadeLake(tmp_path, COLUMNS)


def heads(lake: MadeLake) -> list[int | None]:
    found = (head(lake.table()), head(lake.table(tombstones=True)))
    return [snapshot.snapshot_id if snapshot is not None else None for snapshot in found]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.matrix)])
def test_one_of_two_simultaneous_attempts_is_published_and_whole(rounds: int, tmp_path: Path) -> None:
    for number in range(rounds):  # each with tables of its own: they grow by each attempt
        folder = tmp_path / str(number)
        folder.mkdir()
        require_one_published([MadeLake(folder, COLUMNS), MadeLake(folder, COLUMNS)], pairs=20)


def require_one_published(lakes: Sequence[MadeLake], *, pairs: int) -> None:
    lakes[0].apply(upsert(1, 0, 0), delete(1, 1, 0))
    start = threading.Barrier(2)
    with halves_seen(lakes[0]) as halves, ThreadPoolExecutor(2) as both:
        for pair in range(pairs):

            def attempt(lake: MadeLake, at: int, pair: int = pair) -> tuple[list[int], str]:
                changes = upsert(10 + 2 * pair + at, 0, pair), delete(10 + 2 * pair + at, 1, 0)
                start.wait()
                # Twice the same run, as Airflow starts it again beside a zombie; or two runs.
                done = lake.attempt(*changes, run=f"run_{pair}" if pair % 2 else f"run_{pair}_{at}")
                if pair % 4 < 2:
                    start.wait()
                return [snapshot.snapshot for snapshot in reversed(done.snapshots)], refusal(lake, done)

            outcomes = [each.result() for each in [both.submit(attempt, lake, at) for at, lake in enumerate(lakes)]]
            published = [made for made, error in outcomes if not error]
            # Without the second wait, the one may have come when the other was done: it saw what that had written.
            assert len(published) == 1 or pair % 4 >= 2, outcomes
            assert heads(lakes[0]) in published, outcomes
            assert {error for _, error in outcomes if error} <= {"lake.compacted"}
    assert halves == []


def refusal(lake: MadeLake, done: Applied) -> str:
    """The code of the error with which the publication ends; "" without one."""
    try:
        publish(lake.catalog, done.snapshots)
    except RetryLater as error:
        return error.code
    return ""


@contextmanager
def halves_seen(lake: MadeLake) -> Iterator[list[tuple[str, ...]]]:
    """Numbers of snapshots that a reader of both tables found to differ."""
    found: list[tuple[str, ...]] = []
    done = threading.Event()

    def watch() -> None:
        engine = create_engine(str(lake.catalog.engine.url))
        while not done.wait(0.02):
            with engine.connect() as connection:
                places = connection.execute(text("SELECT metadata_location FROM iceberg_tables")).scalars().all()
            numbers = []
            for place in places:
                metadata = lake.catalog._load_file_io(location=place).new_input(place).open().read()
                table = type(lake.table().metadata).model_validate_json(metadata)
                current = table.current_snapshot()
                numbers.append(said(current, NUMBER) if current is not None else "")
            if len(set(numbers)) != 1:
                found.append(tuple(numbers))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        done.set()
        watching.join()


def test_attempts_that_meet_at_the_commit_leave_one_published(tmp_path: Path) -> None:
    lakes = [MadeLake(tmp_path, COLUMNS), MadeLake(tmp_path, COLUMNS)]
    lakes[0].apply(upsert(1, 0, 0))
    done = [made_lake.attempt(upsert(2, 0, 7), delete(2, 1, 0), run="same") for made_lake in lakes]
    assert publish(lakes[1].catalog, done[1].snapshots)
    with pytest.raises(RetryLater) as refused:
        publish(lakes[0].catalog, done[0].snapshots)
    assert refused.value.code == "lake.compacted"
    assert heads(lakes[0]) == [snapshot.snapshot for snapshot in reversed(done[1].snapshots)]
    assert not publish(lakes[0].catalog, done[1].snapshots)  # twice is as once
    assert lakes[0].attempt(upsert(2, 0, 7), delete(2, 1, 0), run="same").snapshots == []


def test_all_tables_are_published_or_none(lake: MadeLake) -> None:
    lake.apply(upsert(1, 0, 0), delete(1, 1, 0))
    before = heads(lake)
    rows, tombstones = lake.table(), lake.table(tombstones=True)
    done = lake.attempt(upsert(2, 0, 0), delete(2, 1, 0))
    fresh = [TableCommit(lake.table(), (), (pointing("main", done.snapshots[1].snapshot),))]
    stale = TableCommit(tombstones, (), (pointing("tag", before[1] or 0, "tag"),))
    with pytest.raises(CommitFailedException):
        commit(lake.catalog, [*fresh, stale])
    assert heads(lake) == before
    assert rows.metadata_location != lake.table().metadata_location  # the branch alone


def test_a_truncate_of_which_the_tombstone_alone_was_published_is_completed(tmp_path: Path) -> None:
    """By a catalog that publishes one table after the other."""
    for flagged in (False, True):
        folder = tmp_path / str(flagged)
        folder.mkdir()
        lake = MadeLake(folder, COLUMNS, flagged=flagged)
        lake.apply(upsert(1, 0, 0), upsert(2, 1, 0))
        changes = truncate(3), upsert(4, 0, 7), delete(5, 2, 0)
        publish(lake.catalog, lake.attempt(*changes).snapshots[:1])
        assert len(lake.scanned()) == 2
        lake.apply(*changes)
        rows = {row["id"]: (row["v"], row.get(DELETED, False)) for row in lake.scanned()}
        assert rows == ({0: (7, False), 1: (0, True), 2: (0, True)} if flagged else {0: (7, False)})
        assert len(lake.scanned(tombstones=True)) == (1 if flagged else 2)


def test_a_table_that_somebody_else_has_written_to_is_left_alone(lake: MadeLake) -> None:
    lake.apply(upsert(1, 0, 0), delete(1, 1, 0))
    done = lake.attempt(upsert(2, 0, 0), delete(2, 1, 0))
    table = lake.table()
    foreign = pa.table([[77], [1], [b"x"]], table.schema().as_arrow())
    table.append(foreign)
    before = heads(lake)
    for act in (lambda: publish(lake.catalog, done.snapshots), lambda: lake.attempt(upsert(3, 0, 0))):
        with pytest.raises(DataAtRisk) as refused:
            act()
        assert refused.value.code == "lake.foreign_write"
        assert str(before[0]) in str(refused.value)
    assert heads(lake) == before
    roll_back(lake, done.snapshots[1].base or 0)
    lake.apply(upsert(2, 0, 5), delete(2, 1, 0))
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(0, 5)]


def test_a_foreign_compaction_in_between_is_followed(lake: MadeLake) -> None:
    changes = [upsert(at, at % 30, at) for at in range(1, 61)]
    for at in range(0, 60, 6):
        lake.apply(*changes[at : at + 6])
    done = lake.attempt(upsert(100, 0, 100), upsert(100, 50, 100), delete(100, 7, 0))
    compacted(lake)
    with pytest.raises(RetryLater) as refused:
        publish(lake.catalog, done.snapshots)
    assert refused.value.code == "lake.compacted"
    lake.apply(upsert(100, 0, 100), upsert(100, 50, 100), delete(100, 7, 0))
    found = {row["id"]: row["v"] for row in lake.scanned()}
    expected = {change.row[0]: change.row[1] for change in changes if change.row} | {0: 100, 50: 100}
    assert found == {key: value for key, value in expected.items() if key != 7}
    assert len(lake.scanned()) == len(found)


def compacted(lake: MadeLake) -> None:
    """As other engines do it: one file, in no order, by a snapshot that says `replace` and nothing of us."""
    tables = lake.opened()
    live = tables.live()[0]
    mirror = tables.mirror(*tables.live())
    unordered = replace(mirror.rows, key=("v",))
    made = rewritten(unordered, Rewrite(tuple(mirror.live), {}))
    change = FileChange(tuple(made), frozenset(file.path for file in mirror.live))
    new = snapshot_of(live, change, tables.schema, {})
    on_branch(replace(new, summary=Summary(Operation.REPLACE)), "main")


def roll_back(lake: MadeLake, snapshot: int, *, tombstones: bool = False) -> None:
    table = lake.table(tombstones=tombstones)
    lake.catalog.commit_table(table, (), (pointing("main", snapshot),))


SHARD = (LOGICAL, ".".join(NAME))


@pytest.fixture
def target(lake: MadeLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTarget:
    monkeypatch.setenv("LAKE", str(lake.catalog.engine.url))
    catalog = {"type": "sql", "uri": "env:LAKE", "warehouse": (tmp_path / "warehouse").as_uri()}
    return IcebergTarget.model_validate(
        {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop", "tables": {"*": {}}}
    )


def test_the_runs_that_readers_see_are_known_also_once_others_have_compacted(
    target: IcebergTarget, lake: MadeLake
) -> None:
    assert published_runs(lake.catalog, target, {SHARD: ["run_1"]}) == {SHARD: {"run_1": 0}}
    for at in (1, 2, 3):
        lake.apply(upsert(at, 0, 0))
    assert published_runs(lake.catalog, target, {SHARD: None}) == {SHARD: {"run_1": 1, "run_2": 2, "run_3": 3}}
    lake.attempt(upsert(4, 0, 0))  # which nobody sees
    assert published_runs(lake.catalog, target, {SHARD: ["run_3", "run_4"]})[SHARD] == {
        "run_1": 1, "run_2": 2, "run_3": 3, "run_4": 0,
    }  # fmt: skip
    compacted(lake)  # by somebody who then expires all that was before
    gone = [snapshot.snapshot_id for snapshot in lake.table().metadata.snapshots if snapshot != head(lake.table())]
    keeper = lake.table()
    lake.catalog.commit_table(keeper, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))
    assert published_runs(lake.catalog, target, {SHARD: ["run_3"]}) == {SHARD: {"run_3": 3}}
    lake.apply(upsert(5, 0, 0))
    assert published_runs(lake.catalog, target, {SHARD: None}) == {SHARD: {"run_5": 4}}


def test_workers_are_told_nothing_of_the_catalog(lake: MadeLake) -> None:
    table = lake.table()
    table.io.properties |= {"uri": "postgresql://me:secret@host/db", "token": "secret", "s3.region": "x"}
    told = table_files(table, table.schema(), ("id",)).io.properties
    assert "secret" not in str(told)
    assert told["s3.region"] == "x"


def test_a_table_that_is_rolled_back_shows_a_lower_number(target: IcebergTarget, lake: MadeLake) -> None:
    first = lake.apply(upsert(1, 0, 0))
    lake.apply(upsert(2, 0, 0))
    lake.apply(upsert(3, 0, 0))
    roll_back(lake, first.snapshots[0].snapshot)
    assert published_runs(lake.catalog, target, {SHARD: ["run_3"]}) == {SHARD: {"run_1": 1, "run_3": 0}}
    lake.apply(upsert(4, 0, 0))  # by a run that has not noticed
    found = published_runs(lake.catalog, target, {SHARD: ["run_3", "run_4"]})
    assert found == {SHARD: {"run_1": 1, "run_3": 0, "run_4": 4}}
    assert published_runs(lake.catalog, target, {("t", "shop.former"): None}) == {}


def test_a_tag_that_a_reader_sets_at_the_same_moment_disturbs_nothing(
    lake: MadeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.apply(upsert(1, 0, 0))
    done = lake.attempt(upsert(2, 0, 0), delete(2, 1, 0))
    load, other = lake.catalog.load_table, MadeLake(Path(lake.catalog.properties["uri"][10:]).parent, COLUMNS)
    tags = iter(["one", "two"])

    def with_a_tag(identifier: object) -> Table:
        table = load(identifier)  # type: ignore[arg-type]
        if (tag := next(tags, "")) and (snapshot := head(other.table())) is not None:
            other.catalog.commit_table(other.table(), (), (pointing(tag, snapshot.snapshot_id, "tag"),))
        return table

    monkeypatch.setattr(lake.catalog, "load_table", with_a_tag)
    assert publish(lake.catalog, done.snapshots)
    assert {"one", "two"} <= set(other.table().metadata.refs)
    assert heads(other) == [snapshot.snapshot for snapshot in reversed(done.snapshots)]


def test_a_snapshot_that_was_expired_before_it_was_published_is_missed(lake: MadeLake) -> None:
    lake.apply(upsert(1, 0, 0))
    done = lake.attempt(upsert(2, 0, 0))
    lost = [replace(done.snapshots[-1], snapshot=1)]
    with pytest.raises(DataAtRisk) as refused:
        publish(lake.catalog, lost)
    assert refused.value.code == "lake.files_lost"


def test_a_mirror_that_was_rolled_back_without_its_tombstones_is_brought_up_again(lake: MadeLake) -> None:
    first = lake.apply(upsert(1, 1, 1), upsert(1, 2, 2))
    changes = delete(2, 1, 1), upsert(2, 2, 20)
    lake.apply(*changes)
    roll_back(lake, first.snapshots[0].snapshot)
    assert len(lake.scanned()) == 2
    lake.apply(*changes)
    assert [(row["id"], row["v"]) for row in lake.scanned()] == [(2, 20)]
    assert len(lake.scanned(tombstones=True)) == 1


def test_tombstones_that_were_dropped_are_missed(lake: MadeLake) -> None:
    lake.apply(upsert(1, 1, 1), delete(1, 7, 7))
    lake.catalog.drop_table(tombstones_of(NAME))
    create(lake.catalog, NAME, lake.rule, lake.row)
    with pytest.raises(DataAtRisk) as refused:
        lake.apply(upsert(0, 7, 7))
    assert (refused.value.code, "another name" in refused.value.remedy) == ("lake.foreign_write", True)


def test_a_table_of_any_name_has_a_folder_of_its_own(lake: MadeLake) -> None:
    name = ("shop", "größe #1?%2f t")
    create(lake.catalog, name, lake.rule, lake.row)
    table = lake.catalog.load_table(name)
    table.append(pa.table([[77], [1], [b"x"]], table.schema().as_arrow()))
    assert table.scan().to_arrow().num_rows == 1
    assert name[1] not in table.location()


def test_tombstones_that_were_rolled_back_without_their_mirror_are_missed(lake: MadeLake) -> None:
    lake.apply(upsert(1, 1, 1), delete(1, 7, 7))
    before = heads(lake)[1] or 0
    lake.apply(delete(2, 1, 1))
    lake.apply(upsert(3, 5, 5))
    roll_back(lake, before, tombstones=True)
    with pytest.raises(DataAtRisk) as refused:
        lake.apply(upsert(1, 1, 1))  # late
    assert refused.value.code == "lake.foreign_write"
    assert "t__deleted" in str(refused.value)
    assert [row["id"] for row in lake.scanned()] == [5]
