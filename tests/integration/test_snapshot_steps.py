"""The steps of a copy as tasks take them: what is due, what each step keeps of its failure, who moves the chain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cdc_core.errors import ConnectionLost, Refused, RetryLater, TableRefused
from cdc_core.meta import Meta
from cdc_core.meta.meta_rows import CopyState
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.schema import Column, TableSchema
from cdc_core.operations.copy import chunks, copier, steps
from cdc_core.operations.copy import key_ranges as keys
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.copy_sources import copy_sources
from cdc_core.operations.copy.pending import chosen, pending
from cdc_core.operations.copy.staging import Staged
from cdc_core.operations.extract.side_by_side import extract_if_free
from cdc_core.operations.rebuild import rebuild as rebuild_source
from tests.integration.one_server import FIRST_MYSQL
from tests.lab.lab import Lab
from tests.lab.staged_tables import table_state

pytestmark = FIRST_MYSQL


@pytest.fixture
def line(make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A pipeline that begins after the tables `t` (100 rows), and `odd`, whose key is taken for one of an odd type."""
    numbers = ", ".join(f"({number}, {number})" for number in range(1, 101))
    made = make_line(snapshot="mode: initial")
    made.origin.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t VALUES {numbers}",
        "CREATE TABLE odd (id INT PRIMARY KEY, v INT)", "INSERT INTO odd VALUES (1, 1)",
    )  # fmt: skip
    known = keys.key_columns

    def key_columns(schema: TableSchema) -> tuple[Column, ...]:
        if schema.table == "odd" and len(schema.columns) == 2:
            raise TableRefused("No order.", where="odd", code="snapshot.not_copyable", remedy="use a dump")
        return known(schema)

    monkeypatch.setattr(keys, "key_columns", key_columns)
    made.begin_now()
    monkeypatch.setenv("SOURCE", made.origin.sql.url)
    made.drain()
    return made


def read(line: Lab, *names: str) -> dict[str, Refused]:
    tables = chosen(line.meta, "shop", [f"{line.origin.name}.{name}" for name in names]) or pending(line.meta, "shop")
    with copier_lease(line.opened, "shop") as lease:
        return steps.read_tables(line.opened, "shop", tables, lease)


def stage(line: Lab) -> Staged:
    with copier_lease(line.opened, "shop") as lease:
        return steps.stage_read(line.opened, "shop", lease)


def extracted(line: Lab) -> bool:
    return extract_if_free(line.opened, "shop")


def states(line: Lab) -> dict[str, CopyState]:
    (source,) = line.meta.status.find().sources
    return {copy.table.partition(".")[2]: copy.state for copy in source.copies}


def due(line: Lab) -> list[str]:
    return [table.name.partition(".")[2] for table in steps.due(line.opened, "shop")]


def test_a_copy_is_due_until_it_is_staged_and_a_table_that_cannot_be_copied_starts_none_by_itself(line: Lab) -> None:
    assert due(line) == ["odd", "t"]
    assert states(line) == {"odd": CopyState.PENDING, "t": CopyState.PENDING}
    refused = read(line)
    assert list(refused) == [f"{line.origin.name}.odd"]
    assert due(line) == ["t"]
    assert states(line) == {"odd": CopyState.REFUSED, "t": CopyState.READ}
    extracted(line)
    before_us = time.time_ns() // 1000 - 60_000_000
    assert stage(line).tables == (f"{line.origin.name}.t",)
    assert due(line) == []
    assert states(line) == {"odd": CopyState.REFUSED, "t": CopyState.COPIED}
    assert steps.copied_since(line.opened, "shop", before_us) == {f"{line.origin.name}.t"}
    assert steps.copied_since(line.opened, "shop", time.time_ns() // 1000) == frozenset()
    line.origin.execute("ALTER TABLE odd ADD COLUMN w INT")
    line.drain()
    assert read(line) == {}  # each copy of what is pending tries it again
    assert states(line)["odd"] is CopyState.READ
    extracted(line)
    stage(line)
    assert states(line) == {"odd": CopyState.COPIED, "t": CopyState.COPIED}


def test_what_another_process_has_copied_since_it_was_seen_as_pending_is_not_copied_once_more(line: Lab) -> None:
    """Of several sources, the tables of the last one are seen hours before they are copied."""
    seen = pending(line.meta, "shop")
    assert copy_sources(line.opened, {"shop": seen}).staged["shop"].batches
    again = copy_sources(line.opened, {"shop": seen})
    assert again.staged == {}
    assert list(again.refused) == [f"shop: {line.origin.name}.odd"]  # what is left of them
    asked = chosen(line.meta, "shop", [f"{line.origin.name}.t"])
    assert copy_sources(line.opened, {"shop": asked}).staged["shop"].tables == (asked[0].name,)


def test_a_copy_that_is_staged_while_meta_is_rebuilt_is_not_forgotten(
    line: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain of a large stage is read for minutes, and what is read may have been copied for hours."""
    line.origin.execute("INSERT INTO t VALUES (101, 101)")
    extracted(line)  # from now on the chain says that rows of the tables are missing
    read(line)
    extracted(line)
    beside: list[str] = []
    known = Meta.rebuild

    def rebuild(meta: Meta, *arguments: Any) -> Any:
        try:
            stage(line)
        except RetryLater as error:
            beside.append(error.code)
        return known(meta, *arguments)

    monkeypatch.setattr(Meta, "rebuild", rebuild)
    rebuild_source(line.opened, "shop")
    stage(line)
    assert due(line) == []
    assert states(line)["t"] is CopyState.COPIED
    assert beside == ["lease.held"]


@pytest.mark.parametrize("read_first", ["all of it", "a part"])
def test_rows_that_were_read_before_a_column_was_masked_are_not_staged(
    line: Lab, monkeypatch: pytest.MonkeyPatch, read_first: str
) -> None:
    """Between two tasks of the snapshot DAG, or between a copy that was stopped and the next one."""
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: 30)
    if read_first == "a part":
        kept = TableCopies.chunk_read

        def killed(meta: Meta, *arguments: Any) -> bool:
            kept(meta, *arguments)
            raise RetryLater("Killed.", code="test.killed", remedy="again")

        with monkeypatch.context() as patched:
            patched.setattr(TableCopies, "chunk_read", killed)
            with pytest.raises(RetryLater, match="Killed"):
                read(line, "t")
    else:
        read(line, "t")
    line.change(tables={"columns": {"mask": [r".*\.t\.v"], "salt": "env:SALT"}})
    extracted(line)
    stage(line)
    assert [part for manifest in line.chain for part in manifest.parts] == []
    assert "t" in due(line)
    read(line, "t")
    extracted(line)
    assert stage(line).tables == (f"{line.origin.name}.t",)
    state = table_state(line.store, line.chain, "t")
    assert state.num_rows == 100
    assert {len(value) for value in state.column("v").to_pylist()} == {64}


def test_a_step_that_fails_is_a_problem_of_the_source_until_it_succeeds(
    line: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failures() -> list[tuple[str, str, str]]:
        return [(failure.task, failure.subject, failure.code) for failure in line.meta.status.find().failures]

    def broken(*_: object, **__: object) -> None:
        raise ConnectionLost("Lost.", where="shop", remedy="wait")

    with monkeypatch.context() as patch:
        patch.setattr(copier, "read_view", broken)
        with pytest.raises(RetryLater):
            read(line, "t")
    assert failures() == [("copy", "shop", "connection.unreachable")]
    read(line, "t")
    assert failures() == []


def test_the_chain_is_moved_by_the_step_itself_unless_another_extractor_has_the_source(line: Lab) -> None:
    read(line, "t")
    line.origin.execute("UPDATE t SET v = 0 WHERE id = 7")
    with line.meta.leases.held("shop", "another extractor", 60):
        before = line.meta.positions.checkpoint("shop")
        assert extracted(line) is False
        assert line.meta.positions.checkpoint("shop") == before
        assert line.meta.failures.find() == ()
    assert extracted(line) is True
    assert stage(line).tables == (f"{line.origin.name}.t",)
    assert line.ids("t") == list(range(1, 101))
