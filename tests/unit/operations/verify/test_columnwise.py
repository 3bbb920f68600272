"""Comparing columns finds exactly the keys that comparing canonical texts row by row finds, in every type."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.model.schema import Column, ColumnType
from cdc_core.model.staged_columns import LITERAL, LITERAL_TYPE, row_field
from cdc_core.operations.verify import columnwise, range_rows
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.range_rows import RangeRows

UTC = datetime.UTC
NOON = datetime.datetime(2024, 2, 29, 12)
Value = Any
"""A typed value; or, in a tuple, the exact text of one that its type does not hold."""
TEXTS = ("a", "A", "a ", "", "\t", "\\N", "\\E", "é", "e\u0301", None)
ENUM = ColumnType("enum", labels=("a", "b", ""))
KINDS: dict[str, tuple[ColumnType, ColumnType, Sequence[Value]]] = {
    "int": (ColumnType("int"), ColumnType("int"), (0, 1, -1, None)),
    "wider": (ColumnType("int"), ColumnType("bigint"), (0, 1, -1, None)),
    "float": (ColumnType("float"), ColumnType("float"), (0.0, -0.0, 1.234567, 1.2345671653747559, None)),
    "nan": (ColumnType("double"), ColumnType("double"), (0.0, -0.0, float("nan"), float("inf"), 0.1)),
    "double": (ColumnType("float"), ColumnType("double"), (0.5, -0.0, 0.0, None)),
    "decimal": (
        ColumnType("decimal", precision=10, scale=2), ColumnType("decimal", precision=10, scale=2),
        (Decimal("1.10"), Decimal("-0.01"), Decimal("0.00"), None),
    ),
    "scale": (
        ColumnType("decimal", precision=10, scale=2), ColumnType("decimal", precision=14, scale=8),
        (Decimal("1.10"), Decimal("0.01"), Decimal("0.00"), None),
    ),
    "date": (ColumnType("date"), ColumnType("date"), (NOON.date(), ("0000-00-00",), ("2024-02-31",), None)),
    "datetime": (ColumnType("datetime"), ColumnType("datetime", fsp=6), (NOON, ("0000-00-00 00:00:00",), None)),
    "timestamp": (ColumnType("timestamp"), ColumnType("timestamp"), (NOON.replace(tzinfo=UTC), None)),
    "moment": (ColumnType("timestamp"), ColumnType("datetime"), (NOON.replace(tzinfo=UTC), None)),
    "time": (ColumnType("time", fsp=3), ColumnType("time", fsp=3), ("10:00:00.500", "-10:00:00.500", "10:00:00.000")),
    "fraction": (ColumnType("time"), ColumnType("time", fsp=6), ("10:00:00", "10:00:00.000000", "10:00:01")),
    "enum": (ENUM, ENUM, ("a", "b", "", ("",), None)),
    "set": (
        ColumnType("set", labels=("b", "a")), ColumnType("set", labels=("a", "b")), ("a,b", "b", "a", "", None)
    ),
    "text": (ColumnType("varchar", length=9), ColumnType("text"), (*TEXTS, "0xd2", ("0xd2",))),
    "binary": (ColumnType("varbinary", length=9), ColumnType("blob"), (b"", b"\0", b"\0\0", b"\x80", None)),
    "json": (ColumnType("json"), ColumnType("json"), ('{"a": 1}', '{"a":1}', "1", "1.0", "null", None)),
    "bit": (ColumnType("bit", length=1), ColumnType("bit", length=1), (True, False, None)),
    "vector": (ColumnType("vector", length=2), ColumnType("vector", length=2), ([0.0, 1.0], [-0.0, 1.0], None)),
}  # fmt: skip
ERRORS = frozenset({"enum"})
Row = tuple[int, tuple[Value, ...]]


def piece(rows: Sequence[Row], names: Sequence[str], side: int) -> ColumnPiece:
    """side: 0 for the source's types, 1 for the target's."""
    columns = [Column("id", ColumnType("int"), False, 1), *(Column(name, KINDS[name][side]) for name in names)]
    arrays = [pa.array([key for key, _ in rows], pa.int32())]
    for at, column in enumerate(columns[1:]):
        kind = row_field(column).type
        values = [values[at] for _, values in rows]
        typed = [None if isinstance(value, tuple) else value for value in values]
        if column.type.base == "enum":
            typed = ["" if value == ("",) else None if isinstance(value, tuple) else value for value in values]
        if column.type.base == "set":  # each server shows the labels in its own order
            labels = column.type.labels
            typed = [value and ",".join(label for label in labels if label in value.split(",")) for value in typed]
        if pa.types.is_timestamp(kind):
            naive = [None if value is None else value.replace(tzinfo=None) for value in typed]
            arrays.append(pa.array(naive, pa.timestamp("us")).cast(pa.int64()).cast(kind))
        else:
            arrays.append(pa.array(typed, kind))
    literals = [
        [(name, value[0]) for name, value in zip(names, values, strict=True) if isinstance(value, tuple)] or None
        for _, values in rows
    ]
    arrays.append(pa.array(literals, LITERAL_TYPE))
    batch = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns] + [LITERAL])
    return ColumnPiece(batch, columns, [0], ERRORS)


def pieces(rows: Sequence[Row], names: Sequence[str], side: int, cuts: Sequence[int]) -> list[ColumnPiece]:
    ends = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    whole = piece(rows, names, side)
    return [ColumnPiece(whole.rows.slice(a, b - a), whole.columns, whole.key, whole.errors) for a, b in pairwise(ends)]


def texts(some: Sequence[ColumnPiece]) -> list[tuple[str, str]]:
    return [
        pair
        for column_piece in some
        for pair in zip(
            row_texts(column_piece.rows, [column_piece.columns[0]]).to_pylist(),
            row_texts(column_piece.rows, column_piece.columns, ERRORS).to_pylist(),
            strict=True,
        )
    ]


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[ColumnPiece], list[ColumnPiece]]:
    """Rows of a source, and a target that has them with some faults."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))

    def values() -> tuple[Value, ...]:
        return tuple(chance.choice(KINDS[name][2]) for name in names)

    source = [(key, values()) for key in range(draw(st.integers(0, 8)))]
    target = list(source)
    for fault in draw(st.lists(st.sampled_from(["value", "swap", "lose", "add", "twice", "order"]), max_size=3)):
        at, other = (chance.randrange(len(target)) for _ in range(2)) if target else (0, 0)
        if fault == "add" or not target:
            target.append((chance.choice([100, 101]), values()))
        elif fault == "value":
            target[at] = (target[at][0], values())
        elif fault == "swap":
            (a, one), (b, two) = target[at], target[other]
            target[at], target[other] = (a, two), (b, one)
        elif fault == "lose":
            del target[at]
        elif fault == "twice":
            target.append(target[at])
        else:
            chance.shuffle(target)
    cuts = draw(st.lists(st.integers(1, 8), max_size=2, unique=True))
    return pieces(source, names, 0, []), pieces(target, names, 1, cuts)


@given(sides())
@settings(max_examples=200, deadline=None)
def test_columns_are_equal_where_texts_are_and_the_same_keys_differ(
    given: tuple[list[ColumnPiece], list[ColumnPiece]],
) -> None:
    source, target = given
    mine, theirs = texts(source), texts(target)
    assert columnwise.equal(source, target) == (mine == theirs)
    found = columnwise.differing_keys(source, target)
    if max(Counter(key for key, _ in mine).values(), default=1) > 1 or len({key for key, _ in theirs}) < len(theirs):
        assert found is None
    else:
        assert sorted(found.to_pylist()) == sorted({key for key, _ in set(mine) ^ set(theirs)})


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_value_of_each_type_differs_from_every_other(name: str) -> None:
    """Also where it is the only difference, and where the server's text is the same: the sign of zero, say."""
    values = KINDS[name][2]
    for value in values:
        for other in values:
            a, b = pieces([(1, (value,))], [name], 0, []), pieces([(1, (other,))], [name], 1, [])
            same = texts(a) == texts(b)
            if value is other:
                assert same
            assert columnwise.equal(a, b) == same
            assert len(columnwise.differing_keys(a, b)) == (not same)


@pytest.mark.parametrize("memory", [0, 1 << 28])
def test_a_range_has_the_same_differing_keys_in_memory_and_on_disk(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shards, too: a row in the wrong one, or in both."""
    monkeypatch.setattr(range_rows, "MEMORY_BYTES", memory)
    rows = [(key, (("0000-00-00",) if key % 3 else NOON.date(), str(key))) for key in range(20)]
    names = ["date", "text"]
    places = np.array([key % 2 for key, _ in rows])
    faults: dict[str, tuple[set[str], list[Row], list[int]]] = {
        "nothing": (set(), rows, places.tolist()),
        "order": (set(), rows[::-1], places[::-1].tolist()),
        "place": ({"4"}, rows, [place if key != 4 else 1 for (key, _), place in zip(rows, places, strict=True)]),
        "both": ({"4"}, [*rows, rows[4]], [*places.tolist(), 1]),
        "copies": ({"4", "5"}, [*rows, rows[4], rows[5]], [*places.tolist(), 0, 1]),
        "lost": ({"0", "19"}, rows[1:-1], places[1:-1].tolist()),
        "value": ({"7"}, [(key, (date, "x" if key == 7 else text)) for key, (date, text) in rows], places.tolist()),
    }
    for fault, (wanted, target, there) in faults.items():
        with closing(RangeRows(keyed=True)) as found:
            found.add("source", piece(rows, names, 0), places)
            found.add("target", piece(target, names, 1), np.array(there))
            assert found.differing() == len(wanted), fault
            assert bool(found._comparison) == bool(wanted or not memory), "it is opened where something differs"
            if wanted:
                assert set(found.comparison.differing_keys().to_pylist()) == wanted
            assert found.rows == {"source": 20, "target": len(target)}
