"""The stage in a bucket whose endpoint has faults: every command ends with an error of ours or the right answer, and no
host but the endpoint is sent anything.

Each command is run once to count its requests, then with a harm at one request, or from one on.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc_core.errors import LockstepError, Refused, RetryLater
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage import s3
from cdc_core.stage import start_record as starts
from cdc_core.stage.manifest import chain, commit, newest, sweep, verify
from cdc_core.stage.objects import ObjectStore, check_writable, find
from cdc_core.stage.sql_views import sql
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter
from tests.lab.hostile_s3 import HARMS, HostileS3, Watched
from tests.lab.made_blocks import Change, Made, block
from tests.lab.staged_tables import changes, export

SCHEMA = TableSchema("shop", "orders", (Column("id", ColumnType("int"), False, 1), Column("note", ColumnType("text"))))
BATCHES, MANY = 3, 1002
PIECE_BYTES = 5 << 20
"""The least that a store takes."""
LARGE = bytes(range(256)) * (PIECE_BYTES // 256 + 5)
SOURCE = "shop"


def place(number: int) -> Position:
    return Position(0, "binlog.000001", 4 + 100 * number)


@dataclass
class Bucket:
    """A bucket with a stage of BATCHES batches, an orphan part, and a folder of MANY objects."""

    server: Any
    name: str
    scratch: Path
    folder: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")

    def open(self, endpoint: str | None = None) -> ObjectStore:
        return open_store(f"s3://{self.name}/{self.folder}", s3_endpoint=endpoint or self.server.endpoint)

    @property
    def port(self) -> int:
        return int(self.server.endpoint.rpartition(":")[2])

    def again(self) -> Bucket:
        """Another stage in the same bucket, for a command that writes."""
        return Bucket(self.server, self.name, self.scratch)


def stage(store: ObjectStore, scratch: Path, numbers: range, *, epoch: int = 1) -> list[Any]:
    if numbers.start == 0:
        starts.put(store, SOURCE, Checkpoint(place(0)), pipeline="p")
    committed = []
    for number in numbers:
        begin, end = Checkpoint(place(number)), Checkpoint(place(number + 1))
        writer = BatchWriter(
            store, pipeline="p", source=SOURCE, epoch=epoch, begin=begin, window=(0, 1), scratch_dir=scratch
        )
        made = Made([Change(SCHEMA, "c", {"id": number, "note": "x" * 500})])
        writer.add(block([made], place(number)))
        committed.append(commit(store, writer.finish(end)))
    return committed


def rows(store: ObjectStore) -> list[int]:
    return list(changes(store, list(chain(store, SOURCE)), "shop.orders").column("id").to_pylist())


def run_stage(bucket: Bucket, store: ObjectStore) -> Any:
    return [one.ours for one in stage(store, bucket.scratch, range(BATCHES, BATCHES + 2))]


def run_read(bucket: Bucket, store: ObjectStore) -> Any:
    out = bucket.scratch / f"{uuid.uuid4().hex}.parquet"
    batches = list(chain(store, SOURCE))
    found = sql(store, {SOURCE: batches}, 'SELECT id FROM "shop.orders_changes" ORDER BY id')
    export(store, batches, "shop.orders", out, partial=True)
    last = newest(store, SOURCE)
    return (
        rows(store),
        [row["id"] for row in found.to_pylist()],
        pq.read_table(out).column("id").to_pylist(),
        [problem.code for problem in verify(store, SOURCE, deep=True, recorded=place(BATCHES))],
        last and last.end.position.offset,
    )


def run_list(bucket: Bucket, store: ObjectStore) -> Any:
    return [info.path for info in store.list("many/")]


def run_large(bucket: Bucket, store: ObjectStore) -> Any:
    output = store.open_output(iter([f"m/{uuid.uuid4().hex}"]), bucket.scratch)
    try:
        output.write(LARGE)
        path = output.publish()
    except BaseException:
        output.discard()
        raise
    assert bucket.open().get(path) == LARGE
    return True


def run_objects(bucket: Bucket, store: ObjectStore) -> Any:
    """One request of each kind, on its own."""
    path = f"o/{uuid.uuid4().hex}"
    store.put(path, b"first" * 100)
    taken = store.put_if_absent(path, b"second")
    info = store.stat(path)
    absent = find(store, "o/none"), store.stat("o/none")
    with store.open_input(path) as file:
        text = file.read()
    got = store.get(path)
    check_writable(store)
    return taken, info and info.size_bytes, absent, text == got == b"first" * 100


def run_sweep(bucket: Bucket, store: ObjectStore) -> Any:
    """`removed` is what is not there afterwards."""
    sweep(store, SOURCE, live_epoch=9, older_than_s=-60)
    return True


Command = Callable[[Bucket, ObjectStore], Any]
COMMANDS: dict[str, Command] = {
    "stage": run_stage, "read": run_read, "list": run_list, "large": run_large, "objects": run_objects,
    "sweep": run_sweep,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(s3_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.keys.items():
            patch.setenv(name, value)
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
        patch.setattr(s3, "TRIES", 2)
        patch.setattr(s3, "MULTIPART_BYTES", PIECE_BYTES)
        name = s3_server.create_bucket(f"hostile-{uuid.uuid4().hex}")
        bucket = Bucket(s3_server, name, tmp_path_factory.mktemp("scratch"))
        fill(bucket)
        many = s3_server.buckets / name / bucket.folder / "many"
        many.mkdir()
        for number in range(MANY):
            (many / f"{number:04}").write_bytes(b"1")
        yield bucket


def fill(bucket: Bucket) -> None:
    """The batches, and at the second one's beginning a part that an earlier epoch has left."""
    store = bucket.open()
    stage(store, bucket.scratch, range(BATCHES), epoch=2)
    writer = BatchWriter(
        store, pipeline="p", source=SOURCE, epoch=1, begin=Checkpoint(place(1)), window=(0, 1),
        scratch_dir=bucket.scratch,
    )  # fmt: skip
    writer.add(block([Made([Change(SCHEMA, "c", {"id": 99, "note": "orphan"})])], place(1)))
    writer.finish(Checkpoint(place(2)))


@dataclass
class Outcome:
    requests: list[str]
    met: list[str]
    watched: Watched
    elsewhere: bytes

    def wrong(self, expected: Any) -> str:
        """What is wrong with how it ended; "" for nothing."""
        error = self.watched.error
        if self.watched.hangs:
            return "hangs"
        if self.elsewhere:
            return f"sent {self.elsewhere[:60]!r} elsewhere"
        if error is None:
            return "" if self.watched.result == expected else f"answered {str(self.watched.result)[:200]}"
        if not isinstance(error, LockstepError) or error.code.startswith("internal."):
            return f"{type(error).__name__}: {str(error)[:300]}"
        return ""


def attempt(bucket: Bucket, name: str, step: int | None, harm: str = "", *, on: bool = False) -> Outcome:
    last = 10_000 if on and step is not None else None
    with HostileS3(bucket.port, step, harm, last=last) as hostile:
        store = bucket.open(hostile.endpoint)
        watched = Watched.of(lambda: COMMANDS[name](bucket, store))
        return Outcome(list(hostile.requests), list(hostile.met), watched, bytes(hostile.elsewhere.received))


def ready(made: Bucket, name: str) -> Bucket:
    """Commands that write get a stage of their own."""
    if name not in ("stage", "sweep"):
        return made
    bucket = made.again()
    fill(bucket)
    return bucket


def after(bucket: Bucket, name: str, outcome: Outcome) -> str:
    """What is wrong in the stage once the endpoint is honest again; then the command succeeds."""
    store = bucket.open()
    numbers = list(range(BATCHES))
    if name == "stage":
        if outcome.watched.error is None:
            numbers += [BATCHES, BATCHES + 1]
        else:
            found = len(list(chain(store, SOURCE)))
            stage(store, bucket.scratch, range(found, BATCHES + 2), epoch=3)
            numbers += [BATCHES, BATCHES + 1]
    if name == "sweep":
        sweep(store, SOURCE, live_epoch=9, older_than_s=-60)
        left = [info.path for info in store.list("changes/")]
        if sorted(left) != sorted(part.path for manifest in chain(store, SOURCE) for part in manifest.parts):
            return f"left {left}"
    problems = verify(store, SOURCE, deep=True, recorded=place(len(numbers)))
    found = rows(store)
    return "" if (found, problems) == (numbers, []) else f"the stage has {found}, {problems}"


def tried(made: Bucket, name: str, expected: Any, step: int, harm: str, *, on: bool) -> str:
    bucket = ready(made, name)
    outcome = attempt(bucket, name, step, harm, on=on)
    bad = outcome.wrong(expected) or (after(bucket, name, outcome) if name in ("stage", "sweep") else "")
    met = outcome.met[0][:90] if outcome.met else "nothing"
    return f"{harm} at {step}{' on' if on else ''} of {name} {met!r}: {bad}" if bad else ""


HONEST: dict[str, tuple[Any, int]] = {}


def honest(made: Bucket, name: str) -> tuple[Any, int]:
    """What the command answers, and the number of its requests."""
    if name not in HONEST:
        outcome = attempt(ready(made, name), name, None)
        assert outcome.watched.error is None, outcome.watched.error
        HONEST[name] = outcome.watched.result, len(outcome.requests)
    return HONEST[name]


def test_commands_of_a_stage_answer_as_expected_at_an_honest_endpoint(made: Bucket) -> None:
    ids = list(range(BATCHES))
    assert honest(made, "read")[0] == (ids, ids, ids, [], place(BATCHES).offset)
    assert honest(made, "stage")[0] == [True, True]
    assert honest(made, "list")[0] == [f"many/{number:04}" for number in range(MANY)]
    assert honest(made, "objects")[0] == (False, 500, (None, None), True)


SHARE = 5
QUICK = [harm for harm in HARMS if harm != "silence"]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_endpoint_may_do_harm_at_any_request(made: Bucket, name: str) -> None:
    """Some harms, each at one request or, every second, at all from one on; together the commands meet each harm."""
    expected, requests = honest(made, name)
    shift = SHARE * list(COMMANDS).index(name)
    harms = itertools.islice(itertools.cycle(QUICK), shift, shift + SHARE)
    wrong = [
        tried(made, name, expected, number * 7 % requests, harm, on=bool(number % 2))
        for number, harm in enumerate(harms)
    ]
    assert list(filter(None, wrong)) == []


ONCE = ("cut", "answer lost", "busy")
"""The request does not arrive; it is done, and nobody hears of it; it is refused for now."""


@pytest.mark.parametrize("harm", ONCE)
@pytest.mark.parametrize("name", ["large", "list", pytest.param("read", marks=pytest.mark.matrix)])
def test_a_request_that_fails_once_is_made_again(made: Bucket, name: str, harm: str) -> None:
    expected, requests = honest(made, name)
    assert [attempt(made, name, step, harm).watched.result for step in range(requests)] == [expected] * requests


@pytest.mark.parametrize("harm", ONCE)
@pytest.mark.parametrize("if_absent", [False, True])
def test_what_is_put_is_there_whole_or_is_taken_by_itself(made: Bucket, harm: str, if_absent: bool) -> None:
    path, body = f"o/{uuid.uuid4().hex}", b"x" * 300_000
    with HostileS3(made.port, 0, harm) as hostile:
        store = made.open(hostile.endpoint)
        done = store.put_if_absent(path, body) if if_absent else store.put(path, body)
        assert len(hostile.met) == 1
    assert made.open().get(path) == body
    assert done is not False or harm == "answer lost", "only a repeated request may find its own object"


def test_a_large_file_is_published_though_the_answer_that_it_is_complete_was_lost(made: Bucket) -> None:
    with HostileS3(made.port, honest(made, "large")[1] - 1, "no such upload") as hostile:
        store, paths = made.open(hostile.endpoint), [f"m/{uuid.uuid4().hex}" for _ in range(2)]
        output = store.open_output(paths, made.scratch)
        output.write(LARGE)
        assert output.publish() == paths[1]  # nothing tells that the first is ours
        assert hostile.met[0].startswith("POST")
    assert made.open().get(paths[1]) == LARGE


@pytest.mark.parametrize(("step", "harm"), [(1, "no such upload"), (-1, "busy")])
def test_an_upload_that_is_gone_or_fails_for_good_is_worth_a_retry_and_shows_nothing(
    made: Bucket, step: int, harm: str
) -> None:
    shown = [info.path for info in made.open().list("m/")]
    error = attempt(made, "large", step % honest(made, "large")[1], harm, on=True).watched.error
    assert isinstance(error, RetryLater)
    assert error.code == "stage.unreachable"
    assert [info.path for info in made.open().list("m/")] == shown


@pytest.mark.parametrize(("harm", "code"), [("wants checksums", "stage.denied"), ("denied", "stage.denied")])
def test_a_rule_of_the_bucket_that_no_retry_changes_is_refused(made: Bucket, harm: str, code: str) -> None:
    error = attempt(made, "large", 0, harm).watched.error
    assert isinstance(error, Refused)
    assert error.code == code


def test_no_request_waits_for_ever(made: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "SILENCE_S", 2.0)
    expected, requests = honest(made, "list")
    assert tried(made, "list", expected, requests - 1, "silence", on=True) == ""


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("harm", QUICK)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_endpoint_may_do_every_harm_at_every_request(made: Bucket, name: str, harm: str, on: bool) -> None:
    expected, requests = honest(made, name)
    wrong = [tried(made, name, expected, step, harm, on=on) for step in range(requests)]
    assert list(filter(None, wrong)) == []
