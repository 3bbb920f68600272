"""Rows go from every snapshot of a table, its files and its manifests; all others stay, under every name; after every
kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate

from cdc_core.lake import data_files, lake_erasure
from cdc_core.lake.lake_erasure import LakeRows, appoint, expire, find
from cdc_core.lake.snapshots import pointing
from tests.integration.test_canaries import seen, written
from tests.lab.made_lake import MadeLake, Winner, delete, upsert

CANARY, KEY = "canary", ("name",)
COLUMNS = [("name", pa.string()), ("note", pa.string())]


class Killed(BaseException):
    """As by kill -9: nothing handles it."""


def mask(keys: pa.Table) -> Any:
    return np.asarray(pc.fill_null(pc.equal(keys.column("name"), CANARY), False))


def apart(low: tuple[Any, ...], high: tuple[Any, ...]) -> bool:
    return bool(high[0] < CANARY or low[0] > CANARY)


def others(seq: int, first: int = 0) -> list[Winner]:
    return [upsert(seq, f"n{number:03}", f"{seq}") for number in range(first, first + 40)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[MadeLake]:
    """The life of a row, a cut and tags at each of its states, and the branch of a run that was killed."""
    made = MadeLake(tmp_path, COLUMNS, KEY)
    made.apply(*others(1))
    tag(made, "before")
    made.apply(upsert(2, CANARY, f"{CANARY}-old"), *others(2, 20))
    tag(made, "old")
    made.apply(upsert(3, CANARY, f"{CANARY}-new"))
    tag(made, "new", **{"max-ref-age-ms": 10**12})
    made.attempt(upsert(4, CANARY, f"{CANARY}-killed"), run="killed")
    made.apply(delete(5, CANARY, f"{CANARY}-new"), upsert(5, "n001", "5"))
    yield made
    made.catalog.engine.dispose()


def tag(lake: MadeLake, name: str, **more: Any) -> None:
    table = lake.table()
    update = pointing(name, table.metadata.current_snapshot_id or 0, "tag")
    update = SetSnapshotRefUpdate.model_validate({**update.model_dump(by_alias=True, exclude_none=True), **more})
    lake.catalog.commit_table(table, (), (update,))


def found_in(lake: MadeLake) -> list[LakeRows]:
    return [
        find(lake.table(tombstones=buried), KEY, mask, apart, spares_present=not buried) for buried in (False, True)
    ]


def erase(lake: MadeLake, cuts: tuple[int, ...] = ()) -> list[dict[int, int]]:
    appointed = []
    for rows in found_in(lake):
        appointed.append(appoint(rows, cuts))
        expire(rows)
    return appointed


def states(table: Table) -> dict[str, list[dict[str, Any]]]:
    """What readers see under each name, without the row."""
    found = {}
    for name in table.metadata.refs:
        snapshot = table.metadata.snapshot_by_name(name)
        assert snapshot is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().sort_by("name").to_pylist()
        found[name] = [row for row in rows if row["name"] != CANARY]
    return found


def left(folder: Path) -> list[str]:
    return seen(written(folder), CANARY)


def test_rows_go_from_all_snapshots_and_files_and_names_keep_all_other_rows(lake: MadeLake, tmp_path: Path) -> None:
    before, ages = states(lake.table()), lake.table().metadata.refs["new"].max_ref_age_ms
    assert set(before) == {"main", "before", "old", "new", "lockstep_killed"}
    untouched = lake.table().metadata.refs["before"].snapshot_id
    cut = next(snapshot for snapshot in lake.table().metadata.snapshots if snapshot.snapshot_id == ref(lake, "old"))
    mirror, buried = found_in(lake)
    assert [kind for kind, _, _ in mirror.places].count("lake snapshot") == 4
    assert [kind for kind, _, _ in buried.places].count("lake snapshot") >= 1
    appointed, _ = erase(lake, (cut.snapshot_id,))
    assert left(tmp_path) == []
    assert states(lake.table()) == before
    assert [*found_in(lake)[0].places, *found_in(lake)[1].places] == []
    assert lake.table().metadata.refs["new"].max_ref_age_ms == ages
    assert lake.table().metadata.refs["before"].snapshot_id == untouched
    assert appointed[cut.snapshot_id] == lake.table().metadata.refs["old"].snapshot_id
    lake.apply(upsert(6, CANARY[:3], "6"), delete(6, "n002", "2"))
    assert len(lake.scanned()) == len(before["main"])
    lake.apply(upsert(3, CANARY, "late"))  # nothing remembers that it was deleted
    assert {row["name"] for row in lake.scanned()} >= {CANARY}


def ref(lake: MadeLake, name: str) -> int:
    return lake.table().metadata.refs[name].snapshot_id


def test_a_cut_without_a_tag_gets_an_heir_and_other_snapshots_expire(lake: MadeLake) -> None:
    lake.apply(*others(6))
    cut = ref(lake, "old")
    lake.table().manage_snapshots().remove_tag("old").commit()
    expected = states(lake.table())
    rows = lake.table().scan(snapshot_id=cut).to_arrow()
    appointed, _ = erase(lake, (cut,))
    kept = lake.table().scan(snapshot_id=appointed[cut]).to_arrow()
    assert kept.num_rows == rows.num_rows - 1
    assert states(lake.table()) == expected
    assert lake.table().metadata.snapshot_by_id(cut) is None


def steps_of(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Kills before or after the n-th file that is written or deleted, or commit."""
    done = [count]

    def step() -> None:
        done[0] -= 1
        if done[0] < 0:
            raise Killed

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            step()
            found = function(*args, **named)
            step()
            return found

        return call

    monkeypatch.setattr(PyArrowFileIO, "delete", dying(PyArrowFileIO.delete))
    monkeypatch.setattr(lake_erasure, "commit", dying(lake_erasure.commit))
    monkeypatch.setattr(data_files, "_write_file", dying(data_files._write_file))


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.matrix)])
def test_killed_at_any_step_it_is_repeated_and_nothing_is_left(
    lake: MadeLake,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
) -> None:
    """Also where a catalog chooses the folders, so that nobody can say which files are nobody's."""
    monkeypatch.setattr(lake_erasure, "unnamed_files", lambda *_, **__: ())
    cut, before = ref(lake, "old"), states(lake.table())
    lake.catalog.engine.dispose()
    kept = tmp_path_factory.mktemp("kept") / "lake"
    shutil.copytree(tmp_path, kept)
    steps, ended = 0, False
    while not ended:
        shutil.rmtree(tmp_path)
        shutil.copytree(kept, tmp_path)
        with pytest.MonkeyPatch.context() as patched:
            steps_of(patched, steps)
            try:
                erase(lake, (cut,))
                ended = True
            except Killed:
                pass
        appointed, _ = erase(lake, (cut,))
        assert left(tmp_path) == [], steps
        assert states(lake.table()) == before, steps
        assert appointed.get(cut) == ref(lake, "old"), steps
        lake.catalog.engine.dispose()
        steps += every
    assert steps > 30


def test_a_row_that_readers_see_stays_there_and_nothing_older(lake: MadeLake, tmp_path: Path) -> None:
    lake.apply(upsert(6, CANARY, "now"))
    before, now = states(lake.table()), in_order(lake)
    assert sum(map(len, found_in(lake)[0].present.values())) == 1
    erase(lake)
    assert in_order(lake) == now
    assert states(lake.table()) == before
    assert seen(written(tmp_path), f"{CANARY}-") == []
    assert [*found_in(lake)[0].places, *found_in(lake)[1].places] == []
    erase(lake)
    assert in_order(lake) == now


def in_order(lake: MadeLake) -> list[dict[str, Any]]:
    return sorted(lake.scanned(), key=lambda row: str(row["name"]))


def test_a_flagged_row_goes_from_the_mirror(tmp_path: Path) -> None:
    lake = MadeLake(tmp_path, COLUMNS, KEY, flagged=True)
    lake.apply(upsert(1, CANARY, f"{CANARY}-old"), *others(1))
    lake.apply(delete(2, CANARY, f"{CANARY}-old"))
    assert len(lake.scanned()) == 41
    erase(lake)
    assert left(tmp_path) == []
    assert len(lake.scanned()) == 40
    lake.catalog.engine.dispose()


def test_files_of_killed_attempts_go_if_they_may_have_the_rows(lake: MadeLake, tmp_path: Path) -> None:
    (folder,) = (tmp_path / "warehouse" / "shop").glob("t-*/data")
    rows = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_size)
    strays = {name: folder / f"{name}.parquet" for name in ("whole", "half", "other")}
    mine = next(row for row in rows if CANARY in str(pa.parquet.read_table(row).to_pylist()))
    shutil.copy(mine, strays["whole"])
    strays["half"].write_bytes(mine.read_bytes()[:100])
    pa.parquet.write_table(pa.table({"x": [1]}), strays["other"])
    records = (text for text in seen(written(folder.parent / "metadata"), CANARY) if text.endswith(": records"))
    manifest = Path(next(records).removesuffix(": records"))
    raw = manifest.read_bytes()
    # What ends where one of its blocks ends is whole, and may have other rows only.
    sizes = (size for size in (0, 4, 100, *range(2000, len(raw), 50)) if not raw[:size].endswith(raw[-16:]))
    parts = {f"{size}-m0.avro": raw[:size] for size in (*sizes, len(raw))}
    for name, part in parts.items():
        manifest.with_name(name).write_bytes(part)
    erase(lake)
    assert [name for name in parts if manifest.with_name(name).exists()] == []
    assert [name for name, path in strays.items() if path.exists()] == ["other"]
    assert left(tmp_path) == []


def test_a_snapshot_that_a_maintenance_has_expired_meanwhile_needs_no_heir(lake: MadeLake) -> None:
    found = find(lake.table(), KEY, mask, apart)
    table = lake.table()
    number = table.metadata.refs["old"].snapshot_id
    table.manage_snapshots().remove_tag("old").commit()
    lake.table().maintenance.expire_snapshots().by_id(number).commit()
    assert number not in appoint(found, [number])
    expire(found)
    assert find(lake.table(), KEY, mask, apart).snapshots == {}
