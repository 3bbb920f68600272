"""A staged part that is not what its manifest says: each way to read it names the file, as `stage verify` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.model.batch import Manifest
from cdc_core.stage import manifest
from cdc_core.stage import sql_views as views
from cdc_core.stage import stage_reader as reader
from cdc_core.stage import start_record as start
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made
from tests.unit.stage.test_reader import insert, rows, stage, truncate

TABLE = "shop.orders"
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "other bytes": lambda data: b"x" * len(data),
    "pages": lambda data: data[:4] + bytes(255 - byte for byte in data[4 : len(data) // 2]) + data[len(data) // 2 :],
    "footer": lambda data: data[:-200] + bytes(255 - byte for byte in data[-200:-8]) + data[-8:],
}
READERS: dict[str, Callable[[Any, list[Manifest], Path], object]] = {
    "changes": lambda store, chain, out: reader.changes(store, chain, TABLE),
    "change_batches": lambda store, chain, out: list(reader.change_batches(store, chain, TABLE)),
    "table_state": lambda store, chain, out: reader.table_state(store, chain, TABLE),
    "state_batches": lambda store, chain, out: list(reader.state_batches(store, chain, TABLE)),
    "by_key_batches": lambda store, chain, out: list(reader.by_key_batches(store, chain, TABLE)),
    "export": lambda store, chain, out: reader.export(store, chain, TABLE, out),
    "sql": lambda store, chain, out: views.sql(store, {"shop": chain}, "SELECT * FROM shop.orders"),
    "sql of changes": lambda store, chain, out: views.sql(
        store, {"shop": chain}, "SELECT note FROM shop.orders_changes"
    ),
}


class Bucket:
    """A store whose files are not on this machine, and which counts how often each is read."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def local_path(self, path: str) -> None:
        return None

    def open_input(self, path: str) -> Any:
        self.reads[path] += 1
        return self._store.open_input(path)


@pytest.mark.parametrize("name", READERS)
def test_a_part_in_a_bucket_is_read_once(name: str, tmp_path: Path) -> None:
    """For its sha256 and for its rows together."""
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(number) for number in range(2000)])], [Made([insert(-1)])])
    bucket = Bucket(store)
    READERS[name](bucket, chain, tmp_path / "out.parquet")
    assert bucket.reads == {part.path: 1 for batch in chain for part in batch.parts}


@pytest.mark.parametrize("where", ["directory", "bucket"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_part_is_named_by_each_way_to_read_it(name: str, damage: str, where: str, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(number, f"note {number}") for number in range(2000)])], [Made([insert(-1)])])
    part = chain[0].parts[0]
    file = store.local_path(part.path)
    assert file is not None
    file.chmod(0o600)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(DataAtRisk) as caught:
        READERS[name](store if where == "directory" else Bucket(store), chain, tmp_path / "out.parquet")
    assert caught.value.code == "stage.damaged"
    assert part.path in caught.value.where
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("lost", [False, True])
def test_a_copy_of_its_table_heals_a_damaged_part_for_all_but_the_history_before_it(lost: bool, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(1)])], [Made([truncate()]), Made([insert(2)])], [Made([insert(3)])])
    start.put(store, "shop", chain[0].begin, pipeline="p")
    for batch in chain:
        manifest.commit(store, batch)
    store.delete(chain[0].parts[0].path)
    if not lost:
        store.put(chain[0].parts[0].path, b"x")
    assert rows(views.sql(store, {"shop": chain}, "SELECT id FROM shop.orders"), "id") == [(2,), (3,)]
    assert reader.export(store, chain, TABLE, tmp_path / "out.parquet") == 2
    (problem,) = manifest.verify(store, "shop", deep=True)
    assert (problem.code, problem.healed) == ("stage.damaged", True)
    for suffix in ("changes", "by_key"):
        with pytest.raises(DataAtRisk) as caught:
            views.sql(store, {"shop": chain}, f"SELECT id FROM shop.orders_{suffix}")
        assert caught.value.code == "stage.damaged"
    since = reader.change_batches(store, chain, TABLE, since=AsOf(position=chain[1].begin.position))
    assert sum(batch.num_rows for batch in since) == 3
    store.delete(chain[2].parts[0].path)
    assert [one.healed for one in manifest.verify(store, "shop", deep=True)] == [True, False]
