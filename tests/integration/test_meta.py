"""One suite of the meta database's contract, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import URL, Connection, UniqueConstraint, create_engine, inspect, make_url, text

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, severity
from cdc_core.meta import Lease, Meta, RunState, database, meta_schema, migrate, scope
from cdc_core.meta.batches import Batches
from cdc_core.meta.database import parse
from cdc_core.meta.meta_rows import Claim, LastWrite, PlannedRun, Renewal, RingDepth
from cdc_core.meta.run_states import RecordState
from cdc_core.model.coverage import NO_SURVEY, How, TableCoverage
from cdc_core.model.run_plan import LedgerEntry, WriteCounts
from tests.lab.made_batches import HOUR_US, START_US, checkpoint, manifest, position, schema
from tests.lab.refusals import raises, refusal
from tests.lab.shell import export

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cdc_core.meta", "hypothesis", "alembic.autogenerate", "pytest"])
TTL_S = 60.0


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of this module's own, with the meta tables in it."""
    if request.param != "sqlite":
        return on_server(request, "postgres" if request.param == "postgres" else "mariadb_target")
    url = f"sqlite:///{tmp_path_factory.mktemp('meta')}/meta.db"
    opened(url, upgrade=True).close()
    return url


def on_server(request: pytest.FixtureRequest, fixture: str) -> str:
    name = f"meta_{uuid.uuid4().hex[:12]}"
    server = request.getfixturevalue(fixture)
    if fixture == "postgres":
        engine = create_engine(server.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        url = str(server.url(name))
    else:
        server.run(f"CREATE DATABASE {name}")
        url = f"{server.url.rstrip('/')}/{name}"
    barrier, answers = PROCESSES.Barrier(3), PROCESSES.Queue()
    openers = [PROCESSES.Process(target=_open_at_once, args=(url, barrier, answers)) for _ in range(3)]
    for opener in openers:
        opener.start()
    assert [answers.get(timeout=60) for _ in openers] == ["None"] * 3  # the first commands have made the tables
    for opener in openers:
        opener.join()
    return url


def _open_at_once(url: str, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        with opened(url) as meta:
            answers.put(repr(meta.positions.checkpoint("shop")))
    except LockstepError as error:
        answers.put(f"{error.code}: {error}")


def opened(url: str, **options: Any) -> Meta:
    """The URL holds the server's password, so it goes the way a password has to go."""
    export({"META_URL": url})
    return Meta.open("env:META_URL", "line", **options)


def exported(url: str) -> URL:
    export({"META_URL": url})
    return parse("env:META_URL")


@pytest.fixture
def meta(database_url: str) -> Iterator[Meta]:
    with opened(database_url) as opened_meta:
        empty(database_url)
        yield opened_meta


def empty(url: str) -> None:
    engine = create_engine(exported(url))
    with engine.begin() as connection:
        for table in reversed(meta_schema.metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


def dump(url: str) -> dict[str, list[Any]]:
    """All that the database holds."""
    engine = create_engine(exported(url))
    with engine.connect() as connection:
        found = {
            table.name: sorted(map(tuple, connection.execute(table.select())), key=repr)
            for table in meta_schema.metadata.sorted_tables
        }
    engine.dispose()
    return found


@contextmanager
def unchanged(url: str) -> Iterator[None]:
    """The block leaves all as it is there."""
    before = dump(url)
    yield
    assert dump(url) == before


def lease_of(meta: Meta, source: str = "shop", *, holder: str = "one", ttl_s: float = TTL_S) -> Lease:
    return meta.leases.acquire(source, holder, ttl_s)


def staged(meta: Meta, count: int, **options: Any) -> Lease:
    lease = lease_of(meta)
    for number in range(count):
        meta.batches.commit(lease, manifest(number, **options))
    return lease


# Leases


def test_a_held_lease_is_refused_with_its_holder_and_expiry(meta: Meta) -> None:
    lease_of(meta, holder="worker-7:123")
    error = refusal(lambda: lease_of(meta, holder="worker-8:9"))
    assert (severity(type(error)), error.code) == (RetryLater, "lease.held")
    assert "worker-7:123" in error.what
    assert "until 20" in error.what


def test_each_taking_of_a_lease_raises_its_epoch(meta: Meta) -> None:
    first = lease_of(meta, ttl_s=0)  # expired at once
    second = lease_of(meta, holder="two")
    meta.leases.release(second)
    third = lease_of(meta, holder="three")
    assert [first.epoch, second.epoch, third.epoch] == [1, 2, 3]


def test_an_expired_lease_that_nobody_took_can_be_renewed(meta: Meta) -> None:
    lease = lease_of(meta, ttl_s=0)
    renewed = meta.leases.renew(lease, TTL_S)
    assert renewed.epoch == lease.epoch
    assert refusal(lambda: lease_of(meta, holder="two")).code == "lease.held"


def test_an_epoch_has_ended_when_its_lease_was_given_back_or_taken_and_not_when_it_only_ran_out(meta: Meta) -> None:
    assert meta.leases.live_epoch("shop") == 0
    lease = lease_of(meta, ttl_s=0)
    assert meta.leases.live_epoch("shop") == lease.epoch  # paused, perhaps: it may renew it
    lease = lease_of(meta, holder="two")
    assert meta.leases.live_epoch("shop") == lease.epoch
    meta.leases.release(lease)
    assert meta.leases.live_epoch("shop") == lease.epoch + 1


def test_many_definitions_of_a_batch_are_recorded_once_each_and_again_only_when_they_change(meta: Meta) -> None:
    lease = lease_of(meta)
    tables = {f"shop.t{n}": 1 for n in range(1200)}
    first = [schema(f"t{n}") for n in range(1200)]
    later = [schema(f"t{n}", columns=("id", "v", "w") if n % 400 == 0 else ("id", "v")) for n in range(1200)]
    for number, schemas in enumerate((first, first, later, first)):
        meta.batches.commit(lease, manifest(number, tables=tables, schemas=schemas))
    every = {definition.id: definition for definition in (*first, *later)}
    assert meta.schemas.find(sorted(every)) == every
    query = text("SELECT source_table, count(*) FROM schema_version GROUP BY 1")
    rows = meta._database.read(lambda connection: [tuple(row) for row in connection.execute(query)])
    assert sorted(rows) == sorted((f"shop.t{n}", 3 if n % 400 == 0 else 1) for n in range(1200))


def test_the_ring_of_who_reads_is_known_and_what_was_in_it_is_gone_with_the_reader(meta: Meta) -> None:
    lease = lease_of(meta)
    meta.batches.commit(lease, manifest(0))
    meta.leases.renew(lease, TTL_S, RingDepth(5, 600, 70, 8000))
    assert meta.status.find().sources[0].ring == RingDepth(5, 600, 70, 8000)
    meta.leases.renew(lease, 0, RingDepth(6, 700, 71, 8001))
    assert meta.status.find().sources[0].ring == RingDepth(0, 0, 71, 8001)
    assert lease_of(meta, holder="two").epoch == lease.epoch + 1
    assert meta.status.find().sources[0].ring == RingDepth()


@pytest.mark.parametrize(
    "move",
    [
        lambda meta, lease: meta.leases.renew(lease, TTL_S, RingDepth(1, 1, 1, 1)),
        lambda meta, lease: meta.batches.commit(lease, manifest(1)),
        lambda meta, lease: meta.positions.advance_watermark(lease, checkpoint(1, START_US + HOUR_US)),
        lambda meta, lease: meta.rebuild(lease, [manifest(0), manifest(1)]),
    ],
    ids=["renew", "commit", "advance", "rebuild"],
)
def test_a_paused_old_holder_moves_nothing(
    meta: Meta, database_url: str, move: Callable[[Meta, Lease], object]
) -> None:
    old = lease_of(meta, ttl_s=0)
    meta.batches.commit(old, manifest(0))
    lease_of(meta, holder="two")
    with unchanged(database_url):
        assert refusal(lambda: move(meta, old)).code == "lease.lost"
        meta.leases.release(old)


@pytest.mark.parametrize("server", ["postgres", "mariadb_target", "mysql9"])
def test_a_process_that_is_paused_in_a_transaction_keeps_an_expired_lease_from_nobody(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    url = on_server(request, server)
    begun, resumed = threading.Event(), threading.Event()

    def paused(connection: Connection) -> None:
        connection.execute(meta_schema.lease.update().values(ring_items=1))
        begun.set()
        assert resumed.wait(60)
        connection.execute(meta_schema.lease.update().values(ring_items=2))

    with opened(url) as two, ThreadPoolExecutor(1) as pool:
        lease = lease_of(two, ttl_s=0)
        monkeypatch.setattr(database, "IDLE_S", 3)
        opened_meta = opened(url)
        writing = pool.submit(opened_meta._database.write, paused)
        try:
            assert begun.wait(60)
            assert lease_of(two, holder="two").epoch == lease.epoch + 1
        finally:
            resumed.set()
        with raises(RetryLater, "connection.unreachable"):
            writing.result(60)
        opened_meta.close()
        assert refusal(lambda: two.batches.commit(lease, manifest(0))).code == "lease.lost"


def test_a_released_lease_moves_nothing(meta: Meta, database_url: str) -> None:
    lease = lease_of(meta)
    meta.leases.release(lease)
    with unchanged(database_url):
        assert refusal(lambda: meta.batches.commit(lease, manifest(0))).code == "lease.lost"


def _race(url: str, holder: str, barrier: Any, answers: Any) -> None:
    with opened(url) as meta:
        barrier.wait()
        try:
            answers.put(meta.leases.acquire("shop", holder, TTL_S).epoch)
        except RetryLater as error:
            answers.put(error.code)
        barrier.wait()  # whoever closes it gives its lease back


def test_of_processes_racing_for_a_lease_one_gets_it(meta: Meta, database_url: str) -> None:
    barrier, answers = PROCESSES.Barrier(2), PROCESSES.Queue()
    racers = [PROCESSES.Process(target=_race, args=(database_url, f"p{n}", barrier, answers)) for n in range(2)]
    for racer in racers:
        racer.start()
    got = [answers.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert sorted(map(str, got)) == ["1", "lease.held"]


# Batches and positions


def test_a_batch_is_recorded_with_its_files_its_definitions_and_its_end(meta: Meta) -> None:
    committed = manifest(0, tables={"shop.orders": 3, "shop.items": 4}, notes=("needs re-sync of table X",))
    meta.batches.commit(lease_of(meta), committed)
    (batch,) = meta.batches.find("shop")
    assert (batch.batch_id, batch.begin, batch.end) == (
        committed.batch_id,
        committed.begin.position,
        committed.end.position,
    )
    assert (batch.rows, batch.events, batch.size_bytes, batch.notes) == (7, 21, 700, committed.notes)
    assert batch.manifest == committed.path
    files = meta.batches.files([batch.batch_id])[batch.batch_id]
    assert [(file.table, file.path, file.rows, file.sha256) for file in files] == [
        (part.table, part.path, part.rows, part.sha256) for part in committed.parts
    ]
    assert meta.positions.checkpoint("shop") == committed.end
    view = meta.plans.find("run", ["shop"], ["t"], None)
    assert dict(view.schemas) == dict(committed.schemas)


def test_the_same_batch_committed_again_changes_nothing(meta: Meta, database_url: str) -> None:
    lease = staged(meta, 2)
    with unchanged(database_url):
        meta.batches.commit(lease, manifest(0))
        meta.batches.commit(lease, manifest(1))


def test_a_gap_is_refused_and_moves_nothing(meta: Meta, database_url: str) -> None:
    lease = staged(meta, 1)
    with unchanged(database_url), raises(DataAtRisk, "meta.gap"):
        meta.batches.commit(lease, manifest(2))


def test_another_batch_in_the_place_of_a_recorded_one_is_refused(meta: Meta, database_url: str) -> None:
    lease = staged(meta, 1)
    before = dump(database_url)
    with raises(DataAtRisk, "stage.chain"):
        meta.batches.commit(lease, manifest(0, end=2))
    changed = manifest(0)
    changed = replace(changed, parts=(replace(changed.parts[0], sha256="f" * 64),))
    assert refusal(lambda: meta.batches.commit(lease, changed)).code == "stage.chain"
    assert dump(database_url) == before


def test_a_batch_of_an_older_epoch_is_adopted(meta: Meta) -> None:
    lease_of(meta, ttl_s=0)
    lease = lease_of(meta, holder="two")
    meta.batches.commit(lease, manifest(0, epoch=1))
    assert [batch.epoch for batch in meta.batches.find("shop")] == [1]
    assert meta.positions.checkpoint("shop") == manifest(0).end


def test_a_batch_of_a_newer_epoch_says_that_the_lease_is_lost(meta: Meta) -> None:
    lease = lease_of(meta)
    assert refusal(lambda: meta.batches.commit(lease, manifest(0, epoch=2))).code == "lease.lost"


def test_a_batch_of_another_source_or_without_extent_is_refused(meta: Meta) -> None:
    lease = lease_of(meta)
    assert refusal(lambda: meta.batches.commit(lease, manifest(0, source="other"))).code == "internal.defect"
    assert refusal(lambda: meta.batches.commit(lease, manifest(0, pipeline="other"))).code == "internal.defect"
    with raises(InternalError, "internal.defect"):
        meta.batches.commit(lease, manifest(0, end=0))


def watermark_us(meta: Meta) -> int:
    stored = meta.positions.checkpoint("shop")
    assert stored is not None
    return stored.watermark_us


def test_the_watermark_moves_alone_and_never_falls(meta: Meta) -> None:
    lease = staged(meta, 1)
    meta.positions.advance_watermark(lease, checkpoint(1, START_US + 9 * HOUR_US))
    meta.positions.advance_watermark(lease, checkpoint(1, START_US + 5 * HOUR_US))
    assert watermark_us(meta) == START_US + 9 * HOUR_US
    meta.batches.commit(lease, manifest(1))
    assert watermark_us(meta) == START_US + 9 * HOUR_US


def test_the_first_watermark_sets_the_position_and_no_later_one_moves_it(meta: Meta) -> None:
    lease = lease_of(meta)
    meta.positions.advance_watermark(lease, checkpoint(3))
    assert refusal(lambda: meta.positions.advance_watermark(lease, checkpoint(4))).code == "meta.gap"
    assert meta.positions.checkpoint("shop") == checkpoint(3)
    assert refusal(lambda: meta.batches.commit(lease, manifest(0))).code == "meta.gap"
    meta.batches.commit(lease, manifest(3))


def test_batches_are_found_by_position(meta: Meta) -> None:
    staged(meta, 4)
    between = meta.batches.find("shop", after=position(1), until=position(3))
    assert [batch.batch_id for batch in between] == [manifest(1).batch_id, manifest(2).batch_id]


def test_a_definition_is_kept_from_where_it_comes_into_force(meta: Meta, database_url: str) -> None:
    lease = lease_of(meta)
    old, new = schema(), schema(columns=("id", "v", "w"))
    for number, definition in enumerate([old, old, new, old]):
        meta.batches.commit(lease, manifest(number, schemas=[definition]))
    rows = dump(database_url)["schema_version"]
    assert [(row[3], row[4]) for row in sorted(rows, key=lambda row: row[3])] == [
        (position(0).seq, old.id),
        (position(2).seq, new.id),
        (position(3).seq, old.id),
    ]


def test_meta_is_rebuilt_from_the_chain_under_an_epoch_above_it(meta: Meta, database_url: str) -> None:
    chain = [manifest(number, epoch=5) for number in range(3)]
    lease, added = meta.rebuild(lease_of(meta), chain)
    assert (lease.epoch, added) == (6, 3)
    assert [batch.batch_id for batch in meta.batches.find("shop")] == [batch.batch_id for batch in chain]
    assert meta.positions.checkpoint("shop") == chain[-1].end
    with unchanged(database_url):
        assert meta.rebuild(lease, chain) == (lease, 0)
    meta.batches.commit(lease, manifest(3, epoch=6))


def test_a_meta_restored_from_an_older_backup_catches_up_with_the_chain(meta: Meta) -> None:
    lease = staged(meta, 2)
    _, added = meta.rebuild(lease, [manifest(number) for number in range(5)])
    assert added == 3
    assert meta.positions.checkpoint("shop") == manifest(4).end


@pytest.mark.parametrize("numbers", [[0, 2], [0], [5, 6]], ids=["hole", "chain ends before meta", "elsewhere"])
def test_a_chain_that_does_not_fit_rebuilds_nothing(meta: Meta, database_url: str, numbers: list[int]) -> None:
    lease = staged(meta, 2)
    with unchanged(database_url), raises(DataAtRisk, "stage.chain"):
        meta.rebuild(lease, [manifest(number) for number in numbers])


def _die_in_the_middle(url: str) -> None:
    real = Batches._insert

    def dying(connection: Any, one: Any) -> None:
        real(connection, one)
        os.kill(os.getpid(), signal.SIGKILL)

    Batches._insert = dying  # type: ignore[method-assign]  # after the position, the batch, its files and definitions; before the commit
    with opened(url) as meta:
        meta.batches.commit(Lease("shop", "line", "one", 1, 0), manifest(1))


def test_a_process_killed_in_the_middle_of_a_commit_leaves_nothing(meta: Meta, database_url: str) -> None:
    lease = staged(meta, 1)
    with unchanged(database_url):
        victim = PROCESSES.Process(target=_die_in_the_middle, args=(database_url,))
        victim.start()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
    meta.batches.commit(lease, manifest(1))
    assert meta.positions.checkpoint("shop") == manifest(1).end


# Runs and consume records

BATCHES = [manifest(number) for number in range(3)]
IDS = [batch.batch_id for batch in BATCHES]


def claims(numbers: list[int], target: str = "t") -> list[Claim]:
    return [Claim(target, IDS[n], "shop.orders", "shop", BATCHES[n].begin.position.seq, 10) for n in numbers]


def claim(meta: Meta, run_id: str, numbers: list[int], target: str = "t") -> None:
    meta.runs.claim(PlannedRun(run_id, "line", None, f"runs/{run_id}", "0"), claims(numbers, target))


def entry(run_id: str, target: str = "t") -> LedgerEntry:
    return LedgerEntry(run_id, target, "shop.orders", 10, 0, 10, 0, 8, 1, 1)


def commit(meta: Meta, run_id: str, numbers: list[int], target: str = "t") -> int:
    shards = [WriteCounts("shop.orders", "0", 5, 0, 1), WriteCounts("shop.orders", "1", 3, 0, 0)]
    return meta.runs.commit(run_id, target, [IDS[n] for n in numbers], [entry(run_id, target)], shards)


def states(meta: Meta, target: str = "t") -> list[tuple[str, str]]:
    return [(record.state.value, record.run_id) for record in meta.records.find(target, IDS)]


def test_a_run_takes_its_batches_from_staged_to_committed_with_a_ledger(meta: Meta) -> None:
    staged(meta, 2)
    claim(meta, "a", [0, 1])
    assert states(meta) == [("STAGED", "a")] * 2
    assert meta.runs.mark_applied("a", "t", IDS[:2]) == 2
    assert commit(meta, "a", [0, 1]) == 2
    assert states(meta) == [("COMMITTED", "a")] * 2
    (row,) = meta.ledgers.find("a")
    assert row.entry == entry("a")
    assert [(shard.shard, shard.written) for shard in row.shards] == [("0", 5), ("1", 3)]
    run = meta.runs.find("a")
    assert run is not None
    assert run.state is RunState.COMMITTED


def test_what_is_forgotten_takes_its_files_records_and_ledgers_with_it(meta: Meta, database_url: str) -> None:
    staged(meta, 3)
    claim(meta, "a", [0, 1])
    meta.runs.mark_applied("a", "t", IDS[:2])
    commit(meta, "a", [0, 1])
    meta.records.purge("shop", manifest(0).end.position, IDS[:1], targets=["t"], copied=())
    before = dump(database_url)
    horizons = {"shop": manifest(0).end.position}
    after = START_US + 2 * HOUR_US
    told = (meta.batches.forget(horizons, after, dry_run=True), meta.runs.forget(1 << 60, dry_run=True))
    assert (told, dump(database_url)) == ((1, 1), before)
    assert (meta.batches.forget(horizons, START_US), meta.of("other").runs.forget(1 << 60)) == (0, 0)
    assert dump(database_url) == before
    assert (meta.batches.forget(horizons, after), meta.runs.forget(1 << 60)) == (1, 1)
    left = dump(database_url)
    assert {name: len(before[name]) - len(rows) for name, rows in left.items() if rows != before[name]} == {
        "batch": 1, "batch_file": 1, "consume_record": 1, "run": 1, "apply_ledger": 1,
    }  # fmt: skip
    assert states(meta) == [("COMMITTED", "a")]


def test_every_step_run_twice_changes_nothing_the_second_time(meta: Meta, database_url: str) -> None:
    staged(meta, 1)
    claim(meta, "a", [0])
    for step in (lambda: meta.runs.mark_applied("a", "t", IDS[:1]), lambda: commit(meta, "a", [0])):
        assert step() == 1
        before = dump(database_url)
        assert step() == 0
        assert dump(database_url) == before
    assert meta.runs.mark_applied("a", "t", IDS[:1]) == 0
    assert dump(database_url) == before


def test_a_run_moves_only_what_it_has_claimed(meta: Meta, database_url: str) -> None:
    staged(meta, 2)
    claim(meta, "a", [0])
    with unchanged(database_url):
        assert refusal(lambda: meta.runs.mark_applied("a", "t", IDS[:2])).code == "run.clear_task"
        assert refusal(lambda: meta.runs.mark_applied("a", "other", IDS[:1])).code == "run.clear_task"
        assert refusal(lambda: meta.runs.mark_applied("b", "t", IDS[:1])).code == "run.clear_task"


def test_a_run_of_whose_batches_another_took_over_some_commits_nothing_until_that_one_has(
    meta: Meta, database_url: str
) -> None:
    staged(meta, 3)
    claim(meta, "a", [0, 1, 2])
    claim(meta, "b", [0, 1])
    assert meta.runs.mark_applied("a", "t", IDS) == 1
    assert states(meta) == [("STAGED", "b"), ("STAGED", "b"), ("APPLIED", "a")]
    before = dump(database_url)
    with raises(RetryLater, "run.taken_over"):
        commit(meta, "a", [0, 1, 2])
    assert meta.runs.mark_applied("a", "t", IDS) == 0
    assert dump(database_url) == before
    meta.runs.mark_applied("b", "t", IDS[:2])
    assert commit(meta, "b", [0, 1]) == 2
    assert commit(meta, "a", [0, 1, 2]) == 1
    assert states(meta) == [("COMMITTED", "b"), ("COMMITTED", "b"), ("COMMITTED", "a")]


def test_a_committed_batch_is_never_claimed_again(meta: Meta, database_url: str) -> None:
    staged(meta, 2)
    claim(meta, "a", [0])
    meta.runs.mark_applied("a", "t", IDS[:1])
    commit(meta, "a", [0])
    with unchanged(database_url), raises(RetryLater, "run.taken_over"):
        claim(meta, "b", [0, 1])
    claim(meta, "b", [0], target="another")


def test_a_failure_is_kept_and_moves_no_state(meta: Meta) -> None:
    staged(meta, 1)
    claim(meta, "a", [0])
    claim(meta, "a", [0], target="u")
    meta.runs.record_failure("a", "shard 3 is full" + "." * 10_000, target="t")
    run = meta.runs.find("a")
    assert run is not None
    assert run.state is RunState.FAILED
    assert [record.state for record in meta.records.find("t", IDS)] == [RecordState.STAGED]
    assert (meta.records.find("t", IDS)[0].last_error or "").startswith("shard 3 is full")
    assert meta.records.find("u", IDS)[0].last_error is None
    meta.runs.mark_applied("a", "t", IDS[:1])
    commit(meta, "a", [0])
    meta.runs.mark_applied("a", "u", IDS[:1])
    commit(meta, "a", [0], target="u")
    meta.runs.record_failure("a", "too late")
    run = meta.runs.find("a")
    assert run is not None
    assert (run.state, run.last_error) == (RunState.COMMITTED, None)


def test_a_value_goes_from_every_error_that_is_kept_of_its_pipeline_alone(meta: Meta, database_url: str) -> None:
    def without(text: str) -> str:
        return text.replace("c4n4ry", "…")

    for name in ("line", "second"):
        one = meta.of(name)
        staged(one, 1, pipeline=name)
        claim(one, "a", [0])
        one.runs.record_failure("a", "no place for c4n4ry", target="t")
        one.failures.keep("plan", "", DataAtRisk("c4n4ry?", where="at c4n4ry", code="c", remedy="look at c4n4ry"))
        one.told.settle("r", ["p"], {"p": '{"what": "c4n4ry is full", "code": "c"}'})
    assert meta.errors.count(without) == 4
    meta.errors.rewrite(without)
    assert meta.errors.count(without) == 0
    assert "c4n4ry" not in str(rows_of("line", database_url))
    assert str(rows_of("second", database_url)).count("c4n4ry") == 6
    assert meta.told.settle("r", [], {})[1] == {"p": '{"what": "… is full", "code": "c"}'}


def _claim_in_a_process(url: str, run_id: str, barrier: Any, answers: Any) -> None:
    with opened(url) as meta:
        barrier.wait()
        try:
            claim(meta, run_id, [0, 1, 2])
            answers.put("claimed")
        except LockstepError as error:
            answers.put(error.code)


def test_processes_that_claim_the_same_new_batches_leave_one_owner_of_all(meta: Meta, database_url: str) -> None:
    staged(meta, 3)
    barrier, answers = PROCESSES.Barrier(2), PROCESSES.Queue()
    racers = [PROCESSES.Process(target=_claim_in_a_process, args=(database_url, r, barrier, answers)) for r in "ab"]
    for racer in racers:
        racer.start()
    assert [answers.get(timeout=60) for _ in racers] == ["claimed"] * 2
    for racer in racers:
        racer.join()
    owners = {run_id for _, run_id in states(meta)}
    assert len(states(meta)) == 3
    assert len(owners) == 1


ORDER = [state.value for state in RecordState]
STEPS = st.tuples(
    st.sampled_from(["claim", "apply", "commit", "fail"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([[0], [0, 1], [1, 2], [0, 1, 2]]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14))
def test_in_any_order_of_two_runs_no_record_moves_back_or_commits_twice(
    meta: Meta, database_url: str, steps: list[tuple[str, str, list[int]]]
) -> None:
    empty(database_url)
    staged(meta, 3)
    claimed: dict[str, list[int]] = {}
    commits = dict.fromkeys(range(3), 0)
    for step, run_id, numbers in steps:
        numbers = claimed.get(run_id, numbers) if step != "claim" else numbers
        ids = [IDS[number] for number in numbers]
        held = standing(meta)
        try:
            if step == "claim":
                claim(meta, run_id, numbers)
                claimed[run_id] = numbers
            elif step == "apply":
                meta.runs.mark_applied(run_id, "t", ids)
            elif step == "commit":
                commit(meta, run_id, numbers)
            else:
                meta.runs.record_failure(run_id, "failed", target="t")
        except (RetryLater, Refused):
            assert standing(meta) == held  # what is refused moves nothing
        now = standing(meta)
        for number in range(3):
            old, new = held[number], now[number]
            assert rank(new) >= rank(old)
            assert rank(new) - rank(old) <= 1  # one step at a time
            if old[0] == "COMMITTED":
                assert new == old  # for good
            if new[0] == "COMMITTED" != old[0]:
                commits[number] += 1
                assert (step, new[1], old) == ("commit", run_id, ("APPLIED", run_id))
            elif new[0] == "APPLIED" != old[0]:
                assert (step, new[1], old) == ("apply", run_id, ("STAGED", run_id))
            if old[1] != new[1]:
                assert (step, new[1]) == ("claim", run_id)
    assert all(times <= 1 for times in commits.values())


def standing(meta: Meta) -> list[tuple[str, str]]:
    found = {record.batch_id: (record.state.value, record.run_id) for record in meta.records.find("t", IDS)}
    return [found.get(batch_id, ("", "")) for batch_id in IDS]


def rank(record: tuple[str, str]) -> int:
    return ORDER.index(record[0]) if record[0] else -1


# Status


def test_the_status_tells_positions_lag_states_and_ledgers(meta: Meta) -> None:
    lease = staged(meta, 3)
    claim(meta, "a", [0, 1])
    meta.runs.mark_applied("a", "t", IDS[:2])
    commit(meta, "a", [0, 1])
    meta.runs.record_failure("b", "unknown runs are no error")
    status = meta.status.find(["t", "new"])
    (source,) = status.sources
    assert (source.checkpoint, source.batches, source.rows) == (manifest(2).end, 3, 30)
    assert (source.holder, source.epoch) == (lease.holder, 1)
    assert source.lag_us == status.now_us - manifest(2).end.watermark_us
    first, second = status.targets
    assert {state.value: (record.batches, record.rows) for state, record in first.records.items()} == {
        "COMMITTED": (2, 20)
    }
    assert (first.pending.batches, first.pending.rows) == (1, 10)
    assert (second.target, second.pending.batches) == ("new", 3)
    assert [row.entry.run_id for row in status.ledgers] == ["a"]
    assert [run.run_id for run in status.runs] == ["a"]
    meta.leases.release(lease)
    assert meta.status.find().sources[0].holder is None


def lived(meta: Meta, pipeline: str) -> Meta:
    """A pipeline's part, after something of everything was noted there under names that all pipelines have."""
    mine = meta.of(pipeline)
    lease = mine.leases.acquire("shop", "one", TTL_S)
    for number in range(3):
        mine.batches.commit(lease, manifest(number, pipeline=pipeline))
    run = PlannedRun("a", pipeline, None, "", "")
    mine.runs.claim(run, claims([0, 1]))
    mine.runs.mark_applied("a", "t", IDS[:2])
    commit(mine, "a", [0, 1])
    mine.runs.claim(replace(run, run_id="b"), claims([2]))
    mine.runs.record_failure("b", "what it says")
    mine.writes.accept("t", {"orders": {"d.orders": Renewal(None, LastWrite(f"of {pipeline}", 1))}})
    mine.records.seed("other target", mine.batches.find("shop"))
    mine.coverages.keep(lease, {"shop.orders": TableCoverage(How.EXISTING, 1, 1, "place")}, NO_SURVEY)
    mine.copies.pause("shop", f"somebody of {pipeline}")
    mine.failures.keep("extract", "shop", Refused("what", where="", code="a.b", remedy="none"))
    mine.verifications.finish(lease, "t", "ordered", {"equal": True})
    return mine


def seen(meta: Meta) -> list[Any]:
    """All that a pipeline can ask."""
    return [
        meta.positions.checkpoint("shop"),
        meta.batches.find("shop"),
        meta.batches.files(IDS),
        meta.schemas.find([schema().id]),
        meta.coverages.find("shop"),
        meta.writes.last("t"),
        meta.writes.closed("t", "shop.orders"),
        meta.records.find("t", IDS),
        meta.records.find("other target", IDS),
        meta.records.left_out("t", ["shop.orders"]),
        meta.records.committed_by("a", "t"),
        meta.records.holder(IDS),
        meta.runs.find("a"),
        meta.runs.find("b"),
        meta.ledgers.find("a"),
        meta.plans.first_lacking("shop", "t"),
        meta.plans.find("b", ["shop"], ["t"], None),
        meta.copies.paused("shop"),
        meta.leases.live_epoch("shop"),
        meta.leases.identity("shop"),
        replace(meta.status.find(["t"]), now_us=0, sources=()),
    ]


def test_pipelines_with_equal_names_for_everything_else_leave_each_other_alone(meta: Meta, database_url: str) -> None:
    shared = {table.name for table in meta_schema.metadata.sorted_tables if scope.SHARED in table.info}
    assert shared == {"lease", "cutover"}
    keyed = [table for table in meta_schema.metadata.sorted_tables if table.name not in shared]
    assert {next(iter(table.primary_key)).name for table in keyed} == {"pipeline"}
    mine = lived(meta, "line")
    before = seen(mine)
    assert all(before[:3])
    other = lived(meta, "second")
    assert seen(mine) == before
    rows = rows_of("line", database_url)
    other.records.purge("shop", position(1), IDS[:1], targets=["t"], copied=())
    other.batches.forget({"shop": position(1)}, 2**62)
    other.runs.forget(2**62)
    other.records.take("t", {"shop.orders": IDS})
    other.writes.accept("t", {"orders": {"d.orders": Renewal(LastWrite("of second", 1), None)}})
    other.copies.resume("shop")
    other.failures.clear("extract", "shop")
    assert seen(mine) == before
    assert rows_of("line", database_url) == rows
    assert seen(other) != seen(mine)


def rows_of(pipeline: str, url: str) -> list[Any]:
    return [row for rows in dump(url).values() for row in rows if pipeline in row]


def test_migrated_equals_fresh(database_url: str) -> None:
    """Column by column, key by key: what the migrations make is what meta_schema.py says."""
    engine = create_engine(exported(database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": "lockstep_version", "compare_type": True}
        )
        assert compare_metadata(context, meta_schema.metadata) == []
        found = inspect(connection)
        assert set(found.get_table_names()) == {*meta_schema.metadata.tables, "lockstep_version"}
        for table in meta_schema.metadata.sorted_tables:
            primary = found.get_pk_constraint(table.name)["constrained_columns"]
            assert primary == [column.name for column in table.primary_key.columns]
            unique = {constraint["name"] for constraint in found.get_unique_constraints(table.name)}
            assert unique == {
                constraint.name for constraint in table.constraints if isinstance(constraint, UniqueConstraint)
            }
            foreign = {key["name"] for key in found.get_foreign_keys(table.name)}
            assert foreign == {constraint.name for constraint in table.foreign_key_constraints}
    engine.dispose()


def test_a_new_sqlite_database_is_what_the_migrations_make(tmp_path: Path) -> None:
    """It gets its tables from meta_schema.py, without Alembic."""
    opened(f"sqlite:///{tmp_path}/made.db").close()
    engine = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    with engine.begin() as connection:
        migrate.upgrade(connection)
    engine.dispose()

    def described(name: str) -> dict[str, Any]:
        engine = create_engine(f"sqlite:///{tmp_path}/{name}.db")
        found = inspect(engine)
        shown = {
            get_table_name: [
                sorted(
                    (column["name"], str(column["type"]), column["nullable"], column["default"], column["primary_key"])
                    for column in found.get_columns(get_table_name)
                ),
                found.get_pk_constraint(get_table_name)["constrained_columns"],
                sorted(found.get_foreign_keys(get_table_name), key=str),
                sorted(found.get_unique_constraints(get_table_name), key=str),
                sorted(found.get_indexes(get_table_name), key=str),
            ]
            for get_table_name in found.get_table_names()
        }
        with engine.connect() as connection:
            shown["version"] = migrate.current(connection)
        engine.dispose()
        return shown

    assert described("made") == described("migrated")


def test_the_upgrade_run_again_changes_nothing(meta: Meta, database_url: str) -> None:
    staged(meta, 1)
    with unchanged(database_url):
        opened(database_url, upgrade=True).close()


def test_names_that_differ_in_case_only_are_two_tables(meta: Meta) -> None:
    """MySQL's default collation would take them for one."""
    meta.batches.commit(lease_of(meta), manifest(0, tables={"shop.Orders": 1, "shop.orders": 2}))
    both = [replace(claimed, table=name) for name in ("shop.Orders", "shop.orders") for claimed in claims([0])]
    meta.runs.claim(PlannedRun("a", "line", None, "", ""), both)
    assert [record.table for record in meta.records.find("t", IDS)] == ["shop.Orders", "shop.orders"]


# Servers only: others may have tables there, and a server may be away


@pytest.fixture(params=["postgres", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A URL of a running server's own database, where Lockstep has no tables."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").url())
    return str(request.getfixturevalue("mariadb_target").url) + "/mysql"


def test_a_reader_makes_no_tables(server_url: str) -> None:
    with raises(Refused, "meta.absent"):
        opened(server_url, create=False)


def test_no_error_of_a_server_shows_the_password(server_url: str) -> None:
    url = make_url(server_url)
    secret = "s3cret-of-nobody"
    wrong_login = url.set(password=secret)
    wrong_port = url.set(password=secret, port=1)
    no_database = url.set(database="not_there")
    found = {}
    for url in (wrong_login, wrong_port, no_database):
        error = refusal(lambda url=url: opened(url.render_as_string(hide_password=False)))
        found[error.code] = severity(type(error))
        for shown in (str(error), repr(error), error.where, "".join(traceback.format_exception(error))):
            assert secret not in shown
            assert str(url.password) not in shown
    assert found == {"connection.denied": Refused, "connection.unreachable": RetryLater}


def test_a_table_whose_type_another_command_is_making_on_postgresql_is_made_again(postgres: Any) -> None:
    """It makes the type of a table's rows first, and says so."""
    attempts = []

    def work(connection: Connection) -> None:
        attempts.append(connection)
        if len(attempts) == 1:
            for _ in range(2):
                connection.execute(text("CREATE TYPE made_at_once AS (one INT)"))

    made = database.Database(exported(str(postgres.url())), "shop", busy_timeout_s=5.0)
    try:
        made.write(work)
    finally:
        made.close()
    assert len(attempts) == 2
