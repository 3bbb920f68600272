"""Keys of the table that the model of copies has: which there are, and which of them a server holds for equal.

A shape has a few different keys, each in one or more spellings that are equal to the server. The orders of texts are
those of real collations, for the characters that occur here: tests/integration/test_key_orders.py compares them with
the servers'. SQLite orders by them, too, so that the product's SQL of keys decides as it would on a server.
"""

from __future__ import annotations

import random
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, zip_longest
from typing import Any

from cdc_core.model.schema import Column, ColumnType, TableSchema

Key = tuple[Any, ...]
"""The values of the key's columns."""
Weights = tuple[Any, ...]

_INTRODUCED = re.compile(r"_utf8mb4 X'([0-9A-Fa-f]*)'")
_CONVERTED = re.compile(r"CONVERT\((CAST\(X'[0-9A-Fa-f]*' AS TEXT\)) USING utf8mb4\)")


def _letter(char: str) -> str:
    """Without its accents, in capitals."""
    return unicodedata.normalize("NFD", char)[0].upper()


def _general(text: str) -> Weights:
    """utf8mb4_general_ci: each character has one weight, all beyond U+FFFF the same; blanks at the end do not count."""
    return tuple(0xFFFD if ord(char) > 0xFFFF else ord({"ß": "S"}.get(char, _letter(char))) for char in text)


def _unicode_9(text: str) -> Weights:
    """utf8mb4_0900_ai_ci: U+0001 has no weight, ß two; blanks at the end count."""
    found: list[tuple[int, int]] = []
    for char in text:
        if char == "\x01":
            continue
        if char == "ß":
            found += [(3, ord("S"))] * 2
        else:
            kind = 3 if char.isalpha() else 2 if ord(char) > 0xFFFF else 1
            found.append((kind, ord(_letter(char))))
    return tuple(found)


@dataclass(frozen=True)
class Collation:
    """weights: of a text, the most significant first. blank: the weight with which texts are padded, if they are."""

    name: str
    weights: Callable[[str], Weights]
    blank: Any = None

    def compare(self, one: str, other: str) -> int:
        """As SQLite wants it: below 0, 0, or above."""
        mine, theirs = self.weights(one), self.weights(other)
        if self.blank is not None:
            pairs = list(zip_longest(mine, theirs, fillvalue=self.blank))
            mine, theirs = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        return (mine > theirs) - (mine < theirs)


GENERAL = Collation("utf8mb4_general_ci", _general, ord(" "))
UNICODE_9 = Collation("utf8mb4_0900_ai_ci", _unicode_9)

TEXTS: Mapping[Collation, Sequence[Sequence[str]]] = {
    GENERAL: (
        ("", " ", "  "), ("a\t",), ("a", "A", "á", "a ", "Á  "), ("ab", "AB", "Áb "), ("ß", "s", "S "),
        ("😀", "🚀", "😀 "),
    ),
    UNICODE_9: (
        ("", "\x01"), (" ", "\x01 "), ("🚀", "🚀\x01"), ("a", "A", "á", "a\x01"), ("a ", "Á "),
        ("ß", "ss", "sS", "SS"),
    ),
}  # fmt: skip
"""Six keys, each in its spellings."""


@dataclass(frozen=True, eq=False, repr=False)
class Shape:
    """keys: by number, the spellings of each. collation: of the columns that are texts."""

    name: str
    schema: TableSchema
    keys: Sequence[Sequence[Key]]
    collation: Collation | None = None

    @cached_property
    def _numbers(self) -> Mapping[Key, int]:
        return {key: number for number, spellings in enumerate(self.keys) for key in spellings}

    @property
    def spelled(self) -> bool:
        """Whether a key has several spellings."""
        return self.collation is not None

    def number(self, key: Key) -> int:
        """Equal for keys that the server holds for equal."""
        return self._numbers[key]

    def spelling(self, chance: random.Random, number: int) -> Key:
        spellings = self.keys[number]
        return chance.choice(spellings) if len(spellings) > 1 else spellings[0]

    def values(self, texts: Sequence[str | None]) -> Key:
        """The key with these canonical texts."""
        columns = (self.schema.column(name) for name in self.schema.key)
        pairs = zip(columns, texts, strict=True)
        return tuple(int(text or "") if column.type.base == "int" else text for column, text in pairs)

    def open(self, rows: Mapping[Key, int]) -> sqlite3.Connection:
        """A database with the table shop.t, in the order of the server."""
        database = sqlite3.connect(":memory:")
        columns = []
        for name in self.schema.key:
            text = self.schema.column(name).type.collation
            columns.append(f"{name} TEXT COLLATE {text}" if text else f"{name} INTEGER")
        if self.collation is not None:
            database.create_collation(self.collation.name, self.collation.compare)
        key = ", ".join(self.schema.key)
        database.execute("ATTACH ':memory:' AS shop")
        database.execute(f"CREATE TABLE shop.t ({', '.join(columns)}, v INTEGER, PRIMARY KEY ({key}))")
        marks = ", ".join("?" * (len(self.schema.key) + 1))
        database.executemany(
            f"INSERT INTO shop.t VALUES ({marks})", [(*row_key, value) for row_key, value in rows.items()]
        )
        return database


def as_sqlite(sql: str) -> str:
    """The product's literals of texts, as SQLite writes them."""
    return _CONVERTED.sub(r"\1", _INTRODUCED.sub(r"CAST(X'\1' AS TEXT)", sql))


def _shape(name: str, key: Mapping[str, Sequence[Sequence[Any]]], collation: Collation | None = None) -> Shape:
    """key: by column, its values, each in its spellings."""
    columns = []
    for at, column in enumerate(key, 1):
        text = ColumnType("varchar", length=9, charset="utf8mb4", collation=collation.name) if collation else None
        columns.append(Column(column, text if column == "k" and text else ColumnType("int"), key_part=at))
    schema = TableSchema("shop", "t", (*columns, Column("v", ColumnType("int"))))
    keys = [tuple(product(*spellings)) for spellings in product(*key.values())]
    return Shape(name, schema, keys, collation)


_FEW = [[1], [2]]
INT = _shape("int", {"id": [[number] for number in range(6)]})
TEXT_SHAPES = {
    shape.name: shape
    for shape in (
        _shape("padded text", {"k": TEXTS[GENERAL]}, GENERAL),
        _shape("text", {"k": TEXTS[UNICODE_9]}, UNICODE_9),
        _shape("int and padded text", {"id": _FEW, "k": TEXTS[GENERAL][1:4]}, GENERAL),
        _shape("text and int", {"k": TEXTS[UNICODE_9][3:], "id": _FEW}, UNICODE_9),
    )
}
SHAPES = {INT.name: INT, **TEXT_SHAPES}
