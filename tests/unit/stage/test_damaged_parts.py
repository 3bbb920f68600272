"""A staged part that is not what its manifest says: each way to read it names the file, as `stage verify` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.model.batch import Manifest
from cdc_core.stage import manifest, sql_views, stage_reader, start_record
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.stores import open_store
from tests.lab import staged_tables
from tests.lab.made_blocks import Made
from tests.lab.made_stages import insert, rows, stage, truncate
from tests.lab.refusals import raises

TABLE = "shop.orders"
DAMAGES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "gone": lambda data, other: None,
    "truncated": lambda data, other: data[: len(data) // 2],
    "empty": lambda data, other: b"",
    "longer": lambda data, other: data + b"\0",
    "other bytes": lambda data, other: b"x" * len(data),
    "another part": lambda data, other: other,
    "a bit": lambda data, other: data[:500] + bytes([data[500] ^ 16]) + data[501:],
    "footer": lambda data, other: data[:-200] + bytes(255 - byte for byte in data[-200:-8]) + data[-8:],
}
"""What becomes of a part's bytes; the other are those of another part."""
READERS: dict[str, Callable[[Any, list[Manifest], Path], object]] = {
    "changes": lambda store, chain, out: staged_tables.changes(store, chain, TABLE),
    "change_batches": lambda store, chain, out: list(stage_reader.change_batches(store, chain, TABLE)),
    "table_state": lambda store, chain, out: staged_tables.table_state(store, chain, TABLE),
    "state_batches": lambda store, chain, out: list(stage_reader.state_batches(store, chain, TABLE)),
    "by_key_batches": lambda store, chain, out: list(stage_reader.by_key_batches(store, chain, TABLE)),
    "export": lambda store, chain, out: staged_tables.export(store, chain, TABLE, out),
    "sql": lambda store, chain, out: sql_views.sql(store, {"shop": chain}, "SELECT * FROM shop.orders"),
    "sql of changes": lambda store, chain, out: sql_views.sql(
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


def test_a_part_in_a_bucket_is_read_once_by_each_way_to_read_it(tmp_path: Path) -> None:
    """For its sha256 and for its rows together."""
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(number) for number in range(2000)])], [Made([insert(-1)])])
    for name, read in READERS.items():
        bucket = Bucket(store)
        read(bucket, chain, tmp_path / "out.parquet")
        assert bucket.reads == {part.path: 1 for batch in chain for part in batch.parts}, name


@pytest.mark.parametrize("where", ["directory", "bucket"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_named_by_each_way_to_read_it(damage: str, where: str, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(number, f"note {number}") for number in range(2000)])], [Made([insert(-1)])])
    first, second = (batch.parts[0].path for batch in chain)
    data = DAMAGES[damage](store.get(first), store.get(second))
    store.delete(first)
    if data is not None:
        store.put(first, data)
    for name, read in READERS.items():
        with raises(DataAtRisk, "stage.damaged") as caught:
            read(store if where == "directory" else Bucket(store), chain, tmp_path / "out.parquet")
        assert first in str(caught.value), name
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("lost", [False, True])
def test_a_copy_of_its_table_heals_a_damaged_part_for_all_but_the_history_before_it(lost: bool, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/stage")
    chain = stage(store, [Made([insert(1)])], [Made([truncate()]), Made([insert(2)])], [Made([insert(3)])])
    start_record.put(store, "shop", chain[0].begin, pipeline="p")
    for batch in chain:
        manifest.commit(store, batch)
    store.delete(chain[0].parts[0].path)
    if not lost:
        store.put(chain[0].parts[0].path, b"x")
    assert rows(sql_views.sql(store, {"shop": chain}, "SELECT id FROM shop.orders"), "id") == [(2,), (3,)]
    assert staged_tables.export(store, chain, TABLE, tmp_path / "out.parquet") == 2
    (problem,) = manifest.verify(store, "shop", deep=True)
    assert (problem.code, problem.healed) == ("stage.damaged", True)
    for suffix in ("changes", "by_key"):
        with raises(DataAtRisk, "stage.damaged"):
            sql_views.sql(store, {"shop": chain}, f"SELECT id FROM shop.orders_{suffix}")
    since = stage_reader.change_batches(store, chain, TABLE, since=AsOf(position=chain[1].begin.position))
    assert sum(batch.num_rows for batch in since) == 3
    store.delete(chain[2].parts[0].path)
    assert [damage.healed for damage in manifest.verify(store, "shop", deep=True)] == [True, False]
