"""Every command against a server that does harm at any one step: it ends with an error of ours, and gives nothing away.

A meddler stands in front of a real server and is honest but for the answer to one command. Each command of Lockstep is
run once to count its steps, then once for each step with a harm.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError, UsageError
from cdc_core.meta import Meta
from cdc_core.operations.check import check
from cdc_core.operations.extract import Extractor
from cdc_core.operations.new_pipeline import Wishes, draft
from cdc_core.source.schemas.captured_definitions import table_schemas
from cdc_core.stage import isolated
from cdc_core.stage.stores import open_stage
from cdc_core.targets.reading.destination import Destination
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing.load import LoadFile, open_session
from cdc_core.targets.writing.row_writer import write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from cdc_core.targets.writing.versions import versions_of
from tests.lab.databases import drop_database, own_database
from tests.lab.hostile_server import ANSWERS, CLOSING, Meddler
from tests.lab.opened import opened
from tests.lab.pipeline_file import made_pipeline, target
from tests.lab.shell import export
from tests.lab.target_rows import opened_destination, record_batch, shop

GIVE_UP_S = 120


@dataclass(frozen=True)
class Place:
    """A database with a source table and its target, on a real server; `secret` is a file of this machine."""

    sql: Any
    database: str
    directory: Path
    secret: Path

    def query(self, *statements: str) -> None:
        self.sql.run(*statements, database=self.database)

    def pipeline(self, offset: str) -> Pipeline:
        return made_pipeline(
            self.directory / uuid.uuid4().hex,
            self.database,
            source=f"connection: env:DB, start: {offset}, heartbeat_s: 0.4, read_timeout_s: 2, reconnect_s: 0.1",
            tables=f"include: ['{self.database}[.]t']",
            targets=[target("shards", "env:DB", {"t": {"database": self.database, "table": "u"}})],
        )


@pytest.fixture(scope="module", params=["mariadb", "mysql9"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    sql = request.getfixturevalue(request.param)
    directory = tmp_path_factory.mktemp("hostile")
    secret = directory / "secret"
    secret.write_text("the content of a file of ours")
    sql.run("SET GLOBAL local_infile = ON")
    with own_database(sql) as name:
        sql.run(*(f"CREATE TABLE {name}.{t} (id BIGINT PRIMARY KEY, code VARCHAR(20), n INT)" for t in "tu"))
        yield Place(sql, name, directory, secret)
        drop_database(sql, f"{name}_meta")


def run_check(place: Place, start: str) -> list[LockstepError]:
    findings = check(place.pipeline(start)).findings
    return [finding.error for finding in findings if finding.error is not None]


def run_init(place: Place, start: str) -> list[LockstepError]:
    draft(Wishes("shop", "env:DB", (rf"{place.database}\.t",), place.directory))
    return []


def run_extract(place: Place, start: str) -> list[LockstepError]:
    pipeline = place.pipeline(start)
    with (
        Meta.open(pipeline.meta.url, pipeline.pipeline) as meta,
        Extractor(opened(pipeline, meta), "shop") as extractor,
    ):
        extractor.drain()
    return []


def destination_and_rows(place: Place, start: str) -> tuple[Destination, pa.RecordBatch]:
    """What a run does at first at a target, and what it has for it."""
    target = place.pipeline(start).target("shards")
    with place.sql.connect() as connection:
        (schema,) = table_schemas(connection, lambda d, t: (d, t) == (place.database, "t"))
    destination = opened_destination(target, "t", [schema])
    return destination, record_batch([shop("u", 1, "a", 1, 10), shop("d", 2, None, None, 10)])


def run_write(place: Place, start: str) -> list[LockstepError]:
    """What a run does at a target: looks at it, writes, reads back."""
    destination, rows = destination_and_rows(place, start)
    shard = destination.shards[0]
    with tempfile.TemporaryDirectory() as folder, LoadFile(Path(folder), destination.layout_of(shard)) as file:
        file.add(rows)
        write_shard(
            shard.server, ShardWrite("run", "t", shard.facts, shard.table.placement), file, pause=lambda _: None
        )
        with translating("read back"), open_session(shard.server, place.database, where="read back") as connection:
            outcomes(connection, shard.facts, rows, destination.layout_of(shard), scratch=Path(folder))
    return []


def run_filter(place: Place, start: str) -> list[LockstepError]:
    """What the filter asks a target: the versions of touched keys, with values that the log did not carry."""
    destination, rows = destination_and_rows(place, start)
    shard = destination.shards[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        translating("filter"),
        open_session(shard.server, place.database, where="filter") as connection,
    ):
        versions_of(
            connection, shard.facts, rows, key=("id",), freshness=None, scratch=Path(folder), columns={"code": False}
        )
    return []


def hostile_meta(place: Place) -> Meta:
    database = f"{place.database}_meta"
    place.query(f"CREATE DATABASE IF NOT EXISTS {database}")
    direct = f"mysql://{place.sql.user}:{place.sql.password}@127.0.0.1:{place.sql.port}/{database}"
    export({"META": direct})
    Meta.open("env:META", "shop", upgrade=True).close()
    export({"META": os.environ["DB"].replace("/?", f"/{database}?")})
    return Meta.open("env:META", "shop", busy_timeout_s=1, answer_timeout_s=2)


def run_meta(place: Place, start: str) -> list[LockstepError]:
    """What an extractor, a plan and the page ask of a meta database."""
    with hostile_meta(place) as meta:
        lease = meta.leases.acquire("shop", "test", 60)
        meta.leases.renew(lease, 60)
        meta.positions.checkpoint("shop")
        meta.batches.find("shop")
        meta.plans.find("run", ["shop"], ["shards"], None)
        meta.now_us()
        meta.overviews.find(["shards"], place.pipeline(start).windows)
        meta.leases.release(lease)
    return []


def run_readmit(place: Place, start: str) -> list[LockstepError]:
    """What readmitting a table, `lockstep status` and a run that fails ask of a meta database."""
    store = open_stage(place.pipeline(start).stage)
    with hostile_meta(place) as meta:
        source = f"s{uuid.uuid4().hex}"
        with suppress(UsageError), meta.leases.held(source, "test", 60):
            isolated.clear(store, source, "shop.none")
        meta.failures.keep("readmit", "", UsageError("what", code="usage.unknown_name", remedy="do it"))
        meta.runs.record_failure("run", "why")
        meta.status.find(["shards"])
        meta.ledgers.find("run")
    return []


Command = Callable[[Place, str], list[LockstepError]]
COMMANDS: dict[str, Command] = {
    "check": run_check, "init": run_init, "extract": run_extract, "write": run_write,
    "filter": run_filter, "meta": run_meta, "readmit": run_readmit,
}  # fmt: skip


@dataclass
class Outcome:
    steps: int
    met: str | None
    wrong: str = ""
    code: str = ""


def attempt(command: Command, place: Place, start: str, step: int | None, harm: str = "") -> Outcome:
    with Meddler(place.sql.port, step, harm, place.secret) as meddler:
        url = f"mysql://{place.sql.user}:{place.sql.password}@127.0.0.1:{meddler.port}/"
        export({"DB": url + "?connect_timeout=2&read_timeout=2&write_timeout=2"})
        ended: list[Any] = []

        def work() -> None:
            try:
                ended.append(command(place, start))
            except BaseException as error:  # noqa: BLE001 - looked at below
                ended.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(GIVE_UP_S)
        outcome = Outcome(len(meddler.statements), meddler.met)
        if not ended:
            outcome.wrong = "hangs"
            return outcome
        errors = ended[0] if isinstance(ended[0], list) else [ended[0]]
        for error in errors:
            outcome.code = getattr(error, "code", "")
            if not isinstance(error, LockstepError) or error.code.startswith("internal."):
                outcome.wrong = f"{type(error).__name__}: {str(error)[:300]}"
        received = bytes(meddler.received)
        if b"the content of a file" in received:
            outcome.wrong = "sent a file"
        if place.sql.password.encode() in received or any(place.sql.password in str(error) for error in errors):
            outcome.wrong = "showed the password"
        return outcome


def begin(place: Place) -> str:
    with place.sql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        file, size = cursor.fetchall()[-1][:2]
    place.query("DELETE FROM t", "INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET n = 2")
    return f"{{position: {{file: {file}, offset: {size}}}}}"


PLACES_OF_EACH_RUN = {("mysql9", "write"), *(("mariadb", command) for command in COMMANDS if command != "write")}
"""The client is the same for both servers: on MySQL the command that reads and writes."""
PLACES = [
    pytest.param(flavor, name, marks=[pytest.mark.matrix] * ((flavor, name) not in PLACES_OF_EACH_RUN))
    for flavor in ("mariadb", "mysql9")
    for name in COMMANDS
]


@pytest.mark.parametrize(("place", "name"), PLACES, indirect=["place"])
def test_a_server_may_do_harm_at_any_step(place: Place, name: str) -> None:
    """Some three steps, spread over the session, each with another harm."""
    start = begin(place)
    honest = attempt(COMMANDS[name], place, start, None)
    assert (honest.wrong, honest.code) == ("", "")
    harms = itertools.cycle(itertools.chain.from_iterable(zip(CLOSING, ANSWERS, strict=True)))
    shift = 2 * list(COMMANDS).index(name)
    wrong = []
    for step, harm in zip(
        range(0, honest.steps, max(1, honest.steps // 3)), itertools.islice(harms, shift, None), strict=False
    ):
        outcome = attempt(COMMANDS[name], place, start, step, harm)
        if outcome.wrong:
            wrong.append(f"{harm} at {step} {str(outcome.met)[:100]!r}: {outcome.wrong}")
    assert wrong == []


@pytest.mark.matrix
@pytest.mark.parametrize("harm", [*CLOSING, *ANSWERS])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_step_may_do_every_harm(place: Place, name: str, harm: str) -> None:
    start = begin(place)
    honest = attempt(COMMANDS[name], place, start, None)
    wrong = []
    for step in range(honest.steps):
        outcome = attempt(COMMANDS[name], place, start, step, harm)
        if outcome.wrong:
            wrong.append(f"at {step} {str(outcome.met)[:100]!r}: {outcome.wrong}")
    assert wrong == []


@pytest.mark.parametrize(
    "harm", ["silence", *(pytest.param(case, marks=pytest.mark.matrix) for case in ("drip", "endless rows"))]
)
@pytest.mark.parametrize(("place", "name"), PLACES, indirect=["place"])
def test_no_command_waits_for_ever(place: Place, name: str, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_core.mysql.connections.STATEMENT_TIMEOUT_S", 2.0)
    monkeypatch.setattr("cdc_core.mysql.client.MAX_RESULT_BYTES", 1 << 20)
    monkeypatch.setattr("cdc_core.targets.writing.load.BULK_S", 2.0)
    start = begin(place)
    steps = attempt(COMMANDS[name], place, start, None).steps
    for step in (steps // 3,):
        outcome = attempt(COMMANDS[name], place, start, step, harm)
        assert outcome.wrong == "", f"{step} {outcome.met}"


def run_look(place: Place, start: str) -> list[LockstepError]:
    """What a run asks of a target before it does anything there."""
    destination_and_rows(place, start)
    return []


@pytest.mark.parametrize(
    "harm",
    [
        "fewer columns",
        *(pytest.param(case, marks=pytest.mark.matrix) for case in ("no rows", "nulls", "more columns", "ok")),
    ],
)
@pytest.mark.parametrize("place", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True)
def test_an_answer_of_another_shape_is_named_at_every_step_of_the_look_at_a_target(place: Place, harm: str) -> None:
    start = begin(place)
    steps = attempt(run_look, place, start, None).steps
    outcomes = [attempt(run_look, place, start, step, harm) for step in range(steps)]
    assert [f"{outcome.met}: {outcome.wrong}" for outcome in outcomes if outcome.wrong] == []
