"""Fences on real servers: once one is raised, no write is under way and none is made, however they meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core import config
from cdc_core.cli import target as cli
from cdc_core.cli.output import CliOutput
from cdc_core.cli.pipeline_command import PipelineCall
from cdc_core.config import Guard
from cdc_core.errors import LockstepError, Refused, parts_of
from cdc_core.meta import Meta
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.targets.bookkeeping import fence
from cdc_core.targets.bookkeeping import table_states as bookkeeping
from cdc_core.targets.bookkeeping.fence import admit, bar, lower_fences, raise_fences
from cdc_core.targets.bookkeeping.ownership import Writer, take
from cdc_core.targets.bookkeeping.table_states import STATES, states
from cdc_core.targets.reading.destination import TableUse, open_destination
from cdc_core.targets.reading.sharding import shard_tables
from cdc_core.targets.writing import load
from cdc_core.targets.writing.multiset import write_copies
from tests.lab import pipeline_file
from tests.lab.refusals import raises, refusal
from tests.lab.target_rows import COLUMNS, SHOP, Table, Winner, shop, target_of, target_table

LOG = "CREATE TABLE {name} (word VARCHAR(20), n INT)"
BY_KEY = (SHOP, COLUMNS, ("id",))
BY_COUNT = (LOG, {"word": pa.string(), "n": pa.int32()}, ())


@pytest.fixture(params=[("mariadb_target", BY_KEY), ("mysql9", BY_COUNT)], ids=["key", "no key"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """On each kind of server once: the statements of fences are the same, and precede what a write does."""
    server, shape = request.param
    monkeypatch.setenv("TARGET", request.getfixturevalue(server).url)
    with target_table(request.getfixturevalue(server), *shape) as made:
        yield made


def put(table: Table, number: int, pipeline: str = "shop") -> None:
    """Writes one more row."""
    if table.key:
        table.write([shop("u", number, f"c{number}", number, number)], run=f"run{number}", pipeline=pipeline)
    else:
        rows = [Winner("u", {"word": "w", "n": number}, (number, number, 0, "one"))]
        whole = partial(write_copies, upto={"one": number})
        table.write(rows, run=f"run{number}", transact=whole, pipeline=pipeline)


def rows(table: Table) -> list[int]:
    return [n for (n,) in table.query(f"SELECT n FROM {table.facts.name} ORDER BY n")]


def fences(target: Any) -> list[str | None]:
    return [state.fence and state.fence.note for _, _, state in states(target, ["shop.t"])]


def test_a_fence_refuses_writes_until_it_is_lowered(table: Table) -> None:
    target, told = target_of(table), []
    assert fences(target) == [None]
    lower_fences(target, ["shop.t"])  # one that was never raised
    put(table, 1)
    raise_fences(target, ["shop.t"], "the switch of 12:00", told.append)
    raise_fences(target, ["shop.t"], "another reason")
    with pytest.raises(Refused) as caught:
        put(table, 2)
    assert (caught.value.code, caught.value.where) == ("target.fenced", table.facts.name)
    assert "the switch of 12:00" in caught.value.what
    assert rows(table) == [1]
    assert (fences(target), told) == (["the switch of 12:00"], [table.facts.name])
    lower_fences(target, ["shop.t"])
    lower_fences(target, ["shop.t"])
    put(table, 2)
    assert rows(table) == [1, 2]


def test_a_cutover_that_undoes_late_leaves_the_fences_that_others_have_raised(table: Table) -> None:
    target = target_of(table)
    raise_fences(target, ["shop.t"], "by a person")
    raise_fences(target, ["shop.t"], "switched (1)", owner="shop")
    admit(target, ["shop.t"], "shop", "shop", noted="switched (1)")
    assert fences(target) == ["by a person"]
    lower_fences(target, ["shop.t"])
    for first in ("", "another"):  # a fence of its own, and one that an earlier cutover has left
        if first:
            raise_fences(target, ["shop.t"], "switched long ago", owner=first)
            admit(target, ["shop.t"], "shop", "shop")
        raise_fences(target, ["shop.t"], "switched (2)", owner="shop")
        admit(target, ["shop.t"], "shop", "shop", noted="switched (1)")
        with pytest.raises(Refused, match=r"switched \(2\)"):
            put(table, 1)
        admit(target, ["shop.t"], "shop", "shop", noted="switched (2)")
        notes = fences(target)
        assert notes == (["switched (2)"] if first else [None])


def test_a_table_that_is_written_for_the_first_time_while_fences_are_raised_gets_one(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, name = table.facts.name.split(".")
    rules = {"shop.other": {"database": database, "table": "other"}, "shop.t": {"database": database, "table": name}}
    pipeline_file.write_pipeline(tmp_path, "shop", targets=[pipeline_file.target("copy", "env:TARGET", rules)])
    raised = fence.raise_fences
    Meta.open(f"sqlite:///{tmp_path}/meta.db", "shop").close()
    target = config.load(tmp_path / "shop.yaml").targets[0]

    def taken(logical: str) -> None:
        """As by a run before it writes."""
        places = [(logical, place) for place in shard_tables(target, logical)]
        take(target, places, Writer("shop", frozenset({"its stage"})))

    def first_write_meanwhile(*arguments: Any) -> None:
        if not rows(table):
            taken("shop.t")
            put(table, 1)
        raised(*arguments)

    taken("shop.other")
    monkeypatch.setattr(fence, "raise_fences", first_write_meanwhile)
    call = PipelineCall.of(str(tmp_path / "shop.yaml"), tmp_path, CliOutput(as_json=True))
    cli.fence(call, target=None, table_names=None, note="switched", lower=False)
    with raises(Refused, "target.fenced"):
        put(table, 2)
    assert rows(table) == [1]


def test_a_fence_around_one_table_leaves_the_others_alone(table: Table) -> None:
    raise_fences(target_of(table), ["shop.t"], "not this one")
    table.query(f"UPDATE {table.facts.database}.{STATES} SET table_name = 'another'")
    put(table, 1)
    assert rows(table) == [1]


def test_once_a_fence_is_raised_no_write_commits_any_more(table: Table) -> None:
    """Writers that are at any point of their transactions when it is raised: what they have not committed by the
    return of raise_fences they never commit."""
    target = target_of(table)
    for turn in range(3):
        ended, refused = threading.Event(), []

        def writer(first: int, ended: threading.Event = ended, refused: list[LockstepError] = refused) -> None:
            number = first
            while not ended.is_set():
                try:
                    put(table, number)
                except Refused as caught:
                    refused.append(caught)
                    return
                number += 1

        with ThreadPoolExecutor(3) as pool:
            if table.key:
                tasks = [pool.submit(writer, 10_000 * (turn * 3 + at + 1)) for at in range(3)]
            else:  # batches of a source come one after the other
                tasks = [pool.submit(writer, 10_000 * (turn + 1))]
            before = len(rows(table))
            while len(rows(table)) < before + 3:
                pass
            raise_fences(target, ["shop.t"], f"turn {turn}")
            fenced = rows(table)
            for task in tasks:
                task.result(60)
            ended.set()
        assert [error.code for error in refused] == ["target.fenced"] * len(tasks)
        assert rows(table) == fenced
        lower_fences(target, ["shop.t"])


def test_a_process_that_is_stopped_while_it_raises_a_fence_does_not_keep_the_table(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(table)
    monkeypatch.setattr(bookkeeping, "_IDLE_S", 1)
    stopped = bookkeeping.alone(target, ["shop.t"])
    next(stopped)  # it has the lock
    put(table, 1)
    raise_fences(target, ["shop.t"], "by another process")
    with pytest.raises((LockstepError, pymysql.err.MySQLError)):
        next(stopped)
    assert rows(table) == [1]


def test_a_table_of_fences_that_cannot_be_read_is_not_taken_for_none(table: Table) -> None:
    raise_fences(target_of(table), ["shop.t"], "switched")
    table.query(f"ALTER TABLE {table.facts.database}.{STATES} CHANGE fence why VARCHAR(200)")
    with pytest.raises(LockstepError):
        put(table, 1)
    assert rows(table) == []


def kept_out(table: Table, number: int, pipeline: str) -> bool:
    try:
        put(table, number, pipeline)
    except Refused as error:
        if error.code != "target.fenced":
            raise
        return True
    return False


def test_a_fence_lets_the_way_back_through_and_nobody_else(table: Table) -> None:
    target = target_of(table)
    raise_fences(target, ["shop.t"], "the application came here", owner="shop")
    admit(target, ["shop.t"], "wide_back", "wide")
    assert not kept_out(table, 1, "wide_back")
    assert kept_out(table, 2, "shop")
    # The application is led back here by the other cutover: nobody writes beside it.
    raise_fences(target, ["shop.t"], "and again", owner="wide")
    assert all(kept_out(table, 2, name) for name in ("shop", "wide_back", ""))
    # And away again: the fence of the first cutover stays.
    admit(target, ["shop.t"], "wide_back", "wide")
    assert not kept_out(table, 2, "wide_back")
    assert kept_out(table, 3, "shop")
    admit(target, ["shop.t"], "shop", "shop")
    assert not kept_out(table, 3, "shop")
    assert fences(target) == [None]


def test_a_fence_may_keep_a_way_back_out_alone_until_a_cutover_lets_it_in(table: Table) -> None:
    target = target_of(table)
    bar(target, ["shop.t"], "wide_back", "the application writes here", "wide")
    bar(target, ["shop.t"], "wide_back", "the application writes here", "wide")
    assert kept_out(table, 1, "wide_back")
    assert not kept_out(table, 1, "another")
    admit(target, ["shop.t"], "wide_back", "wide")
    assert not kept_out(table, 2, "wide_back")
    assert fences(target) == [None]

    # Beside a fence that is there for another reason, which stays.
    raise_fences(target, ["shop.t"], "the application came here", owner="shop")
    admit(target, ["shop.t"], "wide_back", "wide")
    bar(target, ["shop.t"], "wide_back", "the application writes here", "wide")
    assert all(kept_out(table, 3, name) for name in ("shop", "wide_back"))
    admit(target, ["shop.t"], "wide_back", "wide")
    assert (kept_out(table, 3, "wide_back"), kept_out(table, 4, "shop")) == (False, True)
    bar(target, ["shop.t"], "wide_back", "the application writes here", "wide")
    admit(target, ["shop.t"], "shop", "shop")  # the application left by the first cutover
    assert (kept_out(table, 4, "wide_back"), kept_out(table, 4, "shop")) == (True, False)


def test_versions_in_the_rows_are_nothing_to_a_way_back_that_a_cutover_will_let_through(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence of other cutovers stays then, and what these have left is older. Its own is lowered."""
    monkeypatch.setenv("TARGET", server.url)
    types = {"id": "bigint", "code": "varchar(20)", "n": "int"}
    columns = [
        Column(name, parse_column_type(kind), nullable=name == "n", key_part=1 if name == "id" else None)
        for name, kind in types.items()
    ]
    with target_table(server, *BY_KEY) as table:
        target = target_of(table)
        rule = target.tables["shop.t"].model_copy(update={"guard": Guard(store="table")})
        back = target.model_copy(update={"tables": {"shop.t": rule}})

        def problems() -> set[str]:
            use = TableUse(pipeline="wide_back", let_in=True)
            with pytest.raises(LockstepError) as caught:
                open_destination(back, "shop.t", [TableSchema("shop", "t", tuple(columns))], use)
            return {error.code for error in parts_of(caught.value)}

        raise_fences(target, ["shop.t"], "switched", owner="shop")
        assert problems() == {"target.fenced"}
        lower_fences(target, ["shop.t"])
        assert problems() == {"config.table_rule"}
        raise_fences(target, ["shop.t"], "switched", owner="wide")
        assert problems() == {"target.fenced", "config.table_rule"}


def test_a_fence_that_has_to_wait_for_too_long_is_to_be_raised_again(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGET", server.url)
    at_once = [
        replace(setting, value=1) if setting.name.endswith("lock_wait_timeout") else setting for setting in load.WRITING
    ]
    monkeypatch.setattr(load, "WRITING", tuple(at_once))
    with target_table(server, *BY_KEY) as table:
        target = target_of(table)
        raise_fences(target, ["shop.t"], "switched", owner="shop")
        with server.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table.facts.database}.{STATES} FOR UPDATE")
            for step in (
                partial(raise_fences, target, ["shop.t"], "again"), partial(lower_fences, target, ["shop.t"]),
                partial(admit, target, ["shop.t"], "back", "shop"), partial(bar, target, ["shop.t"], "back", "", ""),
            ):  # fmt: skip
                assert refusal(step).code == "target.busy"
