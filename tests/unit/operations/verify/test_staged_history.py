"""What the staged changes say of each key: the row after each change, and the row before it, as the model has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.history.events import TABLE
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.schema import DefinedSince, TableSchema
from cdc_core.model.staged_columns import BEFORE_MARK, OP, ROW, SEQ
from cdc_core.operations.verify import staged_history
from cdc_core.operations.verify.shape import Shape
from cdc_core.stage.stores import open_store
from tests.history_model import COLUMNS, KEY, NAMES, Change, histories, winners
from tests.lab import made_batches
from tests.spark.staged_changes import staged_table, table_schema

ITEMS = table_schema("shop.items", COLUMNS, KEY)
UPPER = table_schema(
    "shop.items", {name.upper(): kind for name, kind in COLUMNS.items()}, [name.upper() for name in KEY]
)
NARROW = table_schema("shop.items", {**COLUMNS, "n": "smallint", "more": "int"}, KEY)
KINDS = {
    "full images": histories(),
    "minimal images": histories(minimal=True),
    "truncates": histories(truncates=True, minimal=True),
}


def shape() -> Shape:
    side: Any = SimpleNamespace(key=KEY, sharding=None, as_held=lambda rows: rows)
    return Shape("items", side, ITEMS.columns, {}, frozenset())


def upper(change: Change) -> Change:
    """As a table logs it whose columns are named in capitals."""

    def named(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else {spelled(name): value for name, value in values.items()}

    return replace(
        change, row=named(change.row) or {}, before=named(change.before), literal=named(change.literal),
        absent=[spelled(name) for name in change.absent],
    )  # fmt: skip


def spelled(name: str) -> str:
    return BEFORE_MARK + name.removeprefix(BEFORE_MARK).upper() if name.startswith(BEFORE_MARK) else name.upper()


def staged(folder: Path, number: int, schema: TableSchema, changes: Sequence[Change]) -> Manifest:
    """A batch with one file."""
    rows = staged_table(schema, [upper(change) for change in changes] if schema is UPPER else changes)
    path = folder / f"{number}.parquet"
    pq.write_table(rows, path)
    raw = path.read_bytes()
    part = Part(
        "items", path.name, len(changes), len(raw), rows.nbytes, hashlib.sha256(raw).hexdigest(), schema.id,
        changes[0].seq, changes[-1].seq, {}, absent_rows=sum(bool(change.absent) for change in changes),
    )  # fmt: skip
    made = made_batches.manifest(number, source="s0", tables={"items": len(changes)}, schemas=[schema])
    return replace(made, parts=(part,))


def text(values: Mapping[str, Any], names: Sequence[str] = NAMES) -> str:
    return "\t".join("\\N" if values[name] is None else str(values[name]) for name in names)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), cuts=st.lists(st.integers(1, 20), min_size=1, max_size=9))
@settings(max_examples=40)
def test_of_each_change_the_row_after_it_and_the_row_before_it_are_those_that_the_model_says(
    kind: str, data: st.DataObject, cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where files have definitions with other letter case, or narrower types."""
    changes = data.draw(KINDS[kind]).changes
    folder, manifests, at = tmp_path_factory.mktemp("h"), [], 0
    while at < len(changes):
        some = changes[at : at + cuts[len(manifests) % len(cuts)]]
        schema = data.draw(st.sampled_from([ITEMS, UPPER, NARROW]))
        manifests.append(staged(folder, len(manifests), schema, some))
        at += len(some)
    rows: list[dict[str, str]] = [{}]
    expected = set()
    for number, change in enumerate(changes, 1):
        left = winners(changes[:number], NAMES, KEY)
        rows.append({text(row.values, KEY): text(row.values) for row in left.values() if row.op == "u"})
        expected |= {
            (text(row.values, KEY), *change.order)
            for row in left.values()
            if row.op != "t" and row.order == change.order
        }
    wanted = sorted({key for key, *_ in expected})
    store = open_store(f"file://{folder}")
    found = [
        event
        for table in staged_history.events(
            store, manifests, shape(), frozenset(), pa.array(wanted, pa.string()), {"s0": (0, 1 << 60)}
        )
        for event in table.to_pylist()
    ]
    assert sorted(event[SEQ] for event in found if event["key"] is None) == [
        change.seq for change in changes if change.op == "t"
    ]
    places = {change.order: number for number, change in enumerate(changes, 1)}
    said = [event for event in found if event["key"] is not None]
    assert sorted((wanted[row["key"]], row[SEQ], row[ROW]) for row in said) == sorted(expected)
    for event in said:
        key, number = wanted[event["key"]], places[event[SEQ], event[ROW]]
        assert event[TABLE] == "shop.items"
        assert event["partial"] or event["text"] == rows[number].get(key)
        assert (event[OP] == "d") == (key not in rows[number])
        assert not event["told"] or event["former"] == rows[number - 1].get(key)
        if kind == "full images":
            assert event["told"] or event[OP] == "r"
            assert not event["partial"]


def test_a_column_that_was_dropped_and_added_again_is_not_known_from_older_changes(tmp_path: Path) -> None:
    row = {"a": 1, "b": "x", "n": 1, "y": None, "d": None}
    older, newer = Change("c", row, 5, source="s0"), Change("u", row | {"n": 2}, 9, before=row, source="s0")
    batches = [staged(tmp_path, number, ITEMS, [change]) for number, change in enumerate((older, newer))]
    batches[1] = replace(batches[1], definitions=(DefinedSince(7, ITEMS, emptied=("n",)),))
    wanted = pa.array([text(row, KEY)])
    store = open_store(f"file://{tmp_path}")
    tables = staged_history.events(store, batches, shape(), frozenset(), wanted, {"s0": (10, 10)})
    found = {event[SEQ]: event["partial"] for table in tables for event in table.to_pylist()}
    assert found == {5: True, 9: False}
