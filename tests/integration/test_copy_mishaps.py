"""What happens to servers, disks and tables while they are copied: the call ends in an error that a repeat of it ends,
and then the stage has the rows of the source, each chunk once."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.errors import RetryLater
from cdc_core.operations.copy import chunks, copier
from cdc_core.results import TableReader
from cdc_core.stage import manifest as manifests
from cdc_core.stage.layout import SNAPSHOT
from examples.sandbox.mariadb import MariaDb
from tests.integration.one_server import FIRST_MARIADB
from tests.lab.copying import copy, is_equal, read, stage
from tests.lab.lab import Lab
from tests.lab.origin import Origin

MIB = 1 << 20


def with_table(make_line: Callable[..., Lab], definition: str, *statements: str, **options: str) -> Lab:
    """A pipeline that begins after the rows of its one table `t`, and reads it with one reader."""
    line = make_line(snapshot="readers: 1", **options)
    line.origin.execute(f"CREATE TABLE t ({definition})", *statements)
    line.begin_now()
    line.drain()
    return line


def asked(origin: Origin, query: str) -> list[tuple[Any, ...]]:
    with origin.session() as run:
        return list(run(query))


def whole_once(line: Lab, table: str = "t") -> None:
    """The stage has the table, each chunk once and no file besides."""
    line.drain()
    stage(line)
    is_equal(line, table)
    chunks = [chunk for manifest in line.chain for chunk in manifest.chunks]
    assert len({chunk.number for chunk in chunks}) == len(chunks)
    assert manifests.verify(line.store, "shop", deep=True) == []


@contextmanager
def at_first(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, happens: Callable[[], None]) -> Iterator[list[int]]:
    """Before the first call of a method something happens; yields a list that is not empty once it has."""
    before, met = getattr(of, name), list[int]()

    def wrapped(*arguments: Any, **more: Any) -> Any:
        if not met:
            met.append(1)
            happens()
        return before(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(of, name, wrapped)
        yield met


@FIRST_MARIADB
def test_a_reader_that_is_killed_at_the_server_inside_a_chunk_of_large_rows_reads_the_chunk_again(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows of 12 MiB are one chunk, which ends in the middle the first time."""
    control = make_line().origin
    [[limit]] = asked(control, "SELECT @@GLOBAL.max_allowed_packet")
    control.execute_on_server(f"SET GLOBAL max_allowed_packet = {256 * MIB}")
    try:
        line = with_table(
            make_line, "id INT PRIMARY KEY, b LONGBLOB",
            *(f"INSERT INTO t VALUES ({n}, REPEAT('{n}', {12 * MIB}))" for n in range(3)),
        )  # fmt: skip

        before, met = TableReader.batches, list[int]()

        def batches(reader: TableReader, *arguments: Any) -> Iterator[pa.RecordBatch]:
            for batch in before(reader, *arguments):
                if not met:  # the server has sent no more than a row and what the socket holds
                    met.append(1)
                    session: Any = reader._connection
                    control.execute(f"KILL {session.thread_id()}")
                yield batch

        with monkeypatch.context() as patch:
            patch.setattr(TableReader, "batches", batches)
            with pytest.raises(RetryLater):
                read(line)
        assert met
        read(line)
        whole_once(line)
    finally:
        control.execute_on_server(f"SET GLOBAL max_allowed_packet = {limit}")


@pytest.mark.matrix
def test_a_source_that_restarts_inside_a_copy_is_copied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: 40)
    with MariaDb.start(server_id=61) as server:
        server.run("CREATE DATABASE restarted")
        origin = Origin(server, "restarted")
        line = with_table(
            lambda **options: Lab(tmp_path, origin, **options), "id INT PRIMARY KEY, v INT",
            *(f"INSERT INTO t VALUES ({n}, {n})" for n in range(200)),
        )  # fmt: skip
        read_before: list[int] = []
        chunk = copier._ChunkReader._read

        def third_restarts(self: Any, table: Any, copy: Any, planned: Any) -> None:
            read_before.append(planned.number)
            if len(read_before) == 3:
                server.restart()
            chunk(self, table, copy, planned)

        with monkeypatch.context() as patch:
            patch.setattr(copier._ChunkReader, "_read", third_restarts)
            with pytest.raises(RetryLater):
                read(line)
        origin.execute("UPDATE t SET v = -v WHERE id % 2", "DELETE FROM t WHERE id > 190")
        kept = {copied.chunk.number for copied in line.meta.copies.chunks("shop")}
        assert set(read_before[:2]) <= kept
        read(line)
        whole_once(line)


@FIRST_MARIADB
def test_a_disk_that_is_full_inside_a_copy_costs_the_chunk_and_no_more(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system refuses files of more than 1 MiB, as a full disk would."""
    chance = random.Random(3)
    line = with_table(
        make_line, "id INT PRIMARY KEY, b MEDIUMBLOB",
        *(f"INSERT INTO t VALUES ({n}, X'{chance.randbytes(300_000).hex()}')" for n in range(12)),
    )  # fmt: skip
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(RetryLater) as caught:
            read(line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "disk.error"
    assert list(line.store.list(SNAPSHOT)) == []
    read(line)
    whole_once(line)
    listed = {info.path for info in line.store.list(SNAPSHOT)}
    assert listed == {part.path for manifest in line.chain if manifest.copied for part in manifest.parts}


@FIRST_MARIADB
def test_a_table_that_is_renamed_between_plan_and_read_is_copied_under_its_new_name(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: 10)
    line = with_table(
        make_line, "id INT PRIMARY KEY, v INT", *(f"INSERT INTO t VALUES ({n}, {n})" for n in range(30)),
        tables="on_unlogged_change: resync",
    )  # fmt: skip

    def rename() -> None:
        line.origin.execute("RENAME TABLE t TO u", "INSERT INTO u VALUES (99, 99)")

    with at_first(monkeypatch, copier._ChunkReader, "_read", rename), suppress(RetryLater):
        read(line)
    for _ in range(2):
        line.drain()
        copy(line)
    is_equal(line, "u")
    assert (line.meta.copies.chunks("shop"), line.meta.copies.find("shop")) == ((), ())
