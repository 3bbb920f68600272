"""What lies on disk is its owner's alone, whatever the umask, until the owner opens the stage to others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_core.meta import Meta
from cdc_core.stage.stores import open_store


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_stage_can_be_entered_by_its_owner_only(tmp_path: Path) -> None:
    root = tmp_path / "new" / "stage"
    store = open_store(root.as_uri())
    store.put("changes/table=t/one", b"x")
    assert mode(root) == 0o700
    store.put("changes/table=t/two", b"x")
    assert mode(root) == 0o700


def test_a_stage_that_its_owner_has_opened_stays_open(tmp_path: Path) -> None:
    root = tmp_path / "stage"
    root.mkdir(mode=0o750)
    store = open_store(root.as_uri())
    store.put("changes/table=t/one", b"x")
    assert mode(root) == 0o750


def test_the_meta_database_and_its_logs_are_private(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    with Meta.open(f"sqlite:///{path}", "shop") as meta:
        meta.leases.acquire("shop", "me", 10)
        modes = {file.name: mode(file) for file in tmp_path.iterdir()}
    assert modes["meta.db"] == 0o600
    assert set(modes.values()) == {0o600}
