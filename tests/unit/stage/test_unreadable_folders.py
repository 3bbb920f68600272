"""A folder of the stage that cannot be listed is an error: nobody takes it for an empty one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_core.errors import LockstepError
from cdc_core.operations.apply.retention import purge
from cdc_core.stage.manifest import chain, newest, verify
from cdc_core.stage.public import open as open_stage
from cdc_core.stage.start_record import sources
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.opened import opened_line


@contextmanager
def unlisted(folder: Path, how: str) -> Iterator[None]:
    """No account but root may read the folder; or its name leads back to itself."""
    if how == "loop":
        kept = folder.with_name("kept")
        folder.rename(kept)
        folder.symlink_to(folder)
        try:
            yield
        finally:
            folder.unlink()
            kept.rename(folder)
        return
    root = os.geteuid() == 0
    folder.chmod(0)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def answer(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except LockstepError as error:
        return f"{error.code}, which is {'worth a retry' if error.retriable else 'final'}"


@pytest.mark.parametrize("how", ["loop", "denied"])
@pytest.mark.parametrize("name", ["manifests", "manifests/shop", "starts"])
def test_no_reader_takes_a_folder_that_cannot_be_listed_for_an_empty_one(
    line: Line, tmp_path: Path, name: str, how: str
) -> None:
    line.stage(manifest(0), manifest(1))
    readers = {
        "chain": lambda: list(chain(line.store, "shop")),
        "newest": lambda: newest(line.store, "shop"),
        "verify": lambda: verify(line.store, "shop"),
        "sources": lambda: sources(line.store),
        "open": lambda: open_stage(line.store.uri).tables(),
        "stat": lambda: line.store.stat(f"{name}/x"),
    }
    if how == "loop":  # of a SQLite file that another account may not open, meta says so itself
        readers["purge"] = lambda: purge(opened_line(line), cutoff_us=2**60, dry_run=True)
        readers["plan"] = lambda: line.plan("run")
    whole = {reader: str(read()) for reader, read in readers.items()}
    with unlisted(tmp_path / "stage" / name, how):
        for reader, read in readers.items():
            assert answer(read) in (whole[reader], "disk.error, which is worth a retry"), reader
    assert {reader: str(read()) for reader, read in readers.items() if reader != "plan"} == {
        reader: found for reader, found in whole.items() if reader != "plan"
    }
