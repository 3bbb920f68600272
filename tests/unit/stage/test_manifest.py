"""The chain of manifests: one winner for each name, no gap, no fork; and what verify and sweep find."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.model.batch import MANIFEST_VERSION, Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.stage import start_record
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.intact import open_intact
from cdc_core.stage.layout import horizon_path
from cdc_core.stage.manifest import ChainProblem, chain, commit, read, require_listed, sweep, verify
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made, at
from tests.lab.made_stages import insert, written
from tests.lab.refusals import raises

ONLY_A_VERSION = f'{{"version": {MANIFEST_VERSION}}}'.encode()


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/stage")


def write(store, start: int, stop: int, epoch: int = 1, source: str = "shop") -> Manifest:
    """A batch of one-row transactions start..stop-1, its parts durable, its manifest not committed."""
    return written(store, start, [Made([insert(n)], ts=n) for n in range(start, stop)], source=source, epoch=epoch)


def stage(store, *bounds: int, epoch: int = 1) -> list[Manifest]:
    """Committed batches between the bounds."""
    batches = [write(store, a, b, epoch) for a, b in pairwise(bounds)]
    start_record.put(store, "shop", batches[0].begin, pipeline="line")
    assert all(commit(store, batch).ours for batch in batches)
    return batches


def test_a_committed_manifest_is_read_back_as_it_was(store):
    (batch,) = stage(store, 0, 3)
    assert read(store, "shop", at(0)) == batch
    assert list(chain(store, "shop")) == [batch]


def test_a_taken_name_returns_the_manifest_that_stands_there_and_changes_nothing(store):
    (first,) = stage(store, 0, 3)
    second = write(store, 0, 5, epoch=2)
    committed = commit(store, second)
    assert not committed.ours
    assert committed.manifest == first
    assert list(chain(store, "shop")) == [first]


def test_committing_the_same_manifest_again_is_still_ours(store):
    """The first answer may have been lost on the network."""
    batch = write(store, 0, 3)
    assert commit(store, batch).ours
    assert commit(store, batch).ours


def test_a_chain_is_given_in_stream_order_from_any_link_on(store):
    batches = stage(store, 0, 3, 9, *range(10, 40), 200)
    assert list(chain(store, "shop")) == batches
    assert list(chain(store, "shop", after=at(9))) == batches[2:]
    assert list(chain(store, "shop", after=at(200))) == []
    assert list(chain(store, "other")) == []


def test_a_gap_in_the_chain_is_data_at_risk(store):
    batches = stage(store, 0, 3, 5, 8)
    store.delete(batches[1].path)
    links = chain(store, "shop")
    assert next(links) == batches[0]
    with raises(DataAtRisk, "stage.chain", match=r"from binlog\.000001:304 to binlog\.000001:504"):
        next(links)
    with raises(DataAtRisk, "stage.chain"):
        list(chain(store, "shop", after=at(4)))


def test_a_fork_in_the_chain_is_data_at_risk(store):
    stage(store, 0, 3, 5)
    commit(store, write(store, 1, 5, epoch=2))
    with raises(DataAtRisk, "stage.chain"):
        list(chain(store, "shop"))


@pytest.mark.parametrize("end", [3, 1])
def test_a_batch_that_ends_where_it_begins_or_before_is_data_at_risk(store, end):
    manifest = replace(write(store, 3, 5), end=Checkpoint(at(end)))
    start_record.put(store, "shop", manifest.begin, pipeline="line")
    commit(store, manifest)
    with raises(DataAtRisk, "stage.chain", match="before it begins"):
        list(chain(store, "shop"))


@pytest.mark.parametrize("data", [b"", b"[]", ONLY_A_VERSION, b"\xff", b'{"parts": 3', b"[" * 100_000])
def test_what_is_not_a_manifest_is_data_at_risk(store, data):
    start_record.put(store, "shop", Checkpoint(at(0)), pipeline="line")
    store.put("manifests/shop/0000-0000001-0000000004.json", data)
    with raises(DataAtRisk, "stage.damaged") as caught:
        list(chain(store, "shop"))
    assert "0000000004.json" in str(caught.value)


def test_a_manifest_under_another_name_than_its_own_is_data_at_risk(store):
    (batch,) = stage(store, 0, 3)
    store.put("manifests/shop/0000-0000001-0000000304.json", batch.to_bytes())
    with raises(DataAtRisk, "stage.chain"):
        list(chain(store, "shop"))


def test_a_batch_may_bridge_to_a_new_timeline(store):
    stage(store, 0, 3)
    after = Position(1, "binlog.000001", 4)
    bridge = replace(write(store, 3, 4), end=Checkpoint(after), parts=(), schemas={})
    assert commit(store, bridge).ours
    assert [batch.end.position for batch in chain(store, "shop")] == [at(3), after]


def test_verify_lists_every_problem_at_once(store):
    first, second, third, fourth, fifth = stage(store, 0, 3, 5, 8, 10, 12)
    store.delete(first.parts[0].path)
    store.put(second.parts[0].path, b"short")
    store.delete(third.path)
    store.put(fourth.path, b"not json")
    problems = verify(store, "shop")
    assert {(problem.code, problem.path) for problem in problems} == {
        ("stage.damaged", first.parts[0].path),
        ("stage.damaged", second.parts[0].path),
        ("stage.damaged", fourth.path),
        ("stage.chain", fifth.path),
    }
    assert all(isinstance(problem, ChainProblem) and problem.what for problem in problems)


def test_only_a_deep_verify_finds_one_changed_byte(store):
    (batch,) = stage(store, 0, 3)
    path = batch.parts[0].path
    data = bytearray(store.get(path))
    data[40] ^= 1
    store.put(path, bytes(data))
    assert verify(store, "shop") == []
    [problem] = verify(store, "shop", deep=True)
    assert problem.code == "stage.damaged"
    with pytest.raises(DataAtRisk) as caught, open_intact(store, batch.parts[0]):
        pass
    assert caught.value.what == problem.what, "verify and the readers say the same of a part"


def test_a_deep_verify_counts_rows(store):
    batch = write(store, 0, 3)
    start_record.put(store, "shop", batch.begin, pipeline="line")
    commit(store, replace(batch, parts=(replace(batch.parts[0], rows=4),)))
    (problem,) = verify(store, "shop", deep=True)
    assert problem.what.startswith("The part has 3 rows")


def parts(store) -> set[str]:
    return {info.path for info in store.list("changes/")}


def swept(store, **options) -> list[str]:
    """What a sweep removes: just what it says it would."""
    said = [info.path for info in sweep(store, "shop", dry_run=True, **options).parts]
    assert set(said) <= parts(store)
    assert [info.path for info in sweep(store, "shop", **options).parts] == said
    assert not set(said) & parts(store)
    return said


def test_a_sweep_removes_the_parts_that_no_manifest_lists(store):
    orphan = write(store, 0, 2, epoch=1)
    listed = stage(store, 0, 3, 5, epoch=2)
    others = [write(store, 0, 2, epoch=1, source=name) for name in ("other", "street")]  # before and behind in order
    assert swept(store, live_epoch=3, older_than_s=-1) == [orphan.parts[0].path]
    assert parts(store) == {batch.parts[0].path for batch in [*listed, *others]}
    assert verify(store, "shop", deep=True) == []


def test_a_sweep_spares_a_part_that_is_listed_in_other_letters_by_a_file_system_that_ignores_case(store):
    """There the tables `orders` and `Orders` share a folder, which keeps the name that it got first."""
    first, *_ = stage(store, 0, 3, 5, epoch=2)
    path = first.parts[0].path
    shown = path.replace("cdc_table=shop.orders", "cdc_table=shop.Orders")
    assert shown != path
    store.put(shown, store.get(path))
    assert swept(store, live_epoch=3, older_than_s=-1) == []


def test_a_sweep_spares_live_epochs_young_files_and_what_may_still_be_committed(store):
    stage(store, 0, 3, epoch=1)
    live = write(store, 0, 2, epoch=5)
    paused = write(store, 3, 6, epoch=1)  # its holder lost the lease, and may wake up before anybody commits here
    assert swept(store, live_epoch=5, older_than_s=-1) == []
    assert swept(store, live_epoch=6) == []
    assert commit(store, paused).ours
    assert verify(store, "shop", deep=True) == []
    assert swept(store, live_epoch=6, older_than_s=-1) == [live.parts[0].path]


def test_a_sweep_of_a_broken_chain_removes_nothing(store):
    write(store, 0, 2, epoch=1)
    batches = stage(store, 0, 3, 5, 8, epoch=2)
    store.delete(batches[1].path)
    before = parts(store)
    with pytest.raises(DataAtRisk):
        sweep(store, "shop", live_epoch=3, older_than_s=-1)
    assert parts(store) == before


def purge(store, *purged: Manifest) -> None:
    """Puts the horizon behind these batches; their files stay, as when the purge was killed."""
    last = purged[-1]
    made = Horizon("shop", last.end.position, last.window_end_us, last.batch_id, (), {"shop.orders": 1})
    store.put(horizon_path("shop"), made.to_bytes())


def test_the_chain_begins_at_the_horizon_whether_the_files_before_it_are_gone_or_not(store):
    batches = stage(store, 0, 3, 5, 9)
    purge(store, *batches[:2])
    assert list(chain(store, "shop")) == batches[2:]
    assert verify(store, "shop") == []
    for path in (batches[1].path, batches[0].parts[0].path):
        store.delete(path)
    assert list(chain(store, "shop")) == batches[2:]
    assert verify(store, "shop", deep=True) == []
    assert list(chain(store, "shop", after=at(9))) == []
    require_listed(store, "shop", [batch.path for batch in batches])


def test_who_knows_only_positions_before_the_horizon_is_refused(store):
    """As with a meta database restored from an old backup."""
    batches = stage(store, 0, 3, 5, 9)
    purge(store, *batches[:2])
    store.delete(batches[1].path)
    with raises(DataAtRisk, "stage.chain"):
        list(chain(store, "shop", after=at(3)))


def test_a_horizon_that_cannot_be_read_stops_readers(store):
    stage(store, 0, 3)
    store.put(horizon_path("shop"), ONLY_A_VERSION)
    with raises(DataAtRisk, "stage.damaged"):
        list(chain(store, "shop"))


@pytest.mark.parametrize("step", range(6))
def test_a_sweep_that_is_killed_at_any_step_harms_nothing_and_the_next_one_ends_it(store, step):
    for _ in range(3):
        write(store, 0, 2, epoch=1)
    listed = {part.path for batch in stage(store, 0, 3, 5, epoch=2) for part in batch.parts}
    store.put(".tmp-0123", b"half")
    (store.root / "changes/.tmp-4567").write_bytes(b"half")

    class Dying(type(store)):
        left = step

        def delete(self, path: str) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().delete(path)

    dying = Dying(store.uri)
    with contextlib.suppress(KeyboardInterrupt):
        sweep(dying, "shop", live_epoch=3, older_than_s=-1)
    assert listed <= parts(store)
    assert verify(store, "shop", deep=True) == []
    sweep(store, "shop", live_epoch=3, older_than_s=-1)
    assert parts(store) == listed
    assert list(store.leftovers()) == []
    assert sweep(store, "shop", live_epoch=3, older_than_s=-1).parts == ()


def test_sweeps_at_the_same_time_remove_the_same_and_nothing_else(store):
    for _ in range(20):
        write(store, 0, 2, epoch=1)
    listed = {part.path for batch in stage(store, 0, 3, 5, epoch=2) for part in batch.parts}
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(sweep, store, "shop", live_epoch=3, older_than_s=-1) for _ in range(4)]:
            done.result()
    assert parts(store) == listed


@pytest.mark.parametrize("how", How)
def test_what_a_batch_knows_of_its_tables_is_read_back_as_it_was(store, how):
    manifest = write(store, 0, 1)
    known = replace(manifest, coverage={"shop.t": TableCoverage(how, 5, 6, "binlog.000001:4", rows=7, feeds=("t",))})
    assert Manifest.from_bytes(known.to_bytes()) == known
    with pytest.raises(ValueError, match="whole"):
        Manifest.from_bytes(known.to_bytes().replace(f'"{how.value}"'.encode(), b'"whole"'))
