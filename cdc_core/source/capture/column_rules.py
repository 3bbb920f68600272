"""Columns that are left out, and columns whose value is replaced by a hash, in both images and in `_cdc_literal`.

The hash is SHA2(CONCAT(salt, value), 256) of the value's UTF-8 text (of bytes: of the bytes), so that equal values
have equal hashes in every table, run and extraction, keys included. It must keep true that no value of such a column is
staged, wherever it is in a row.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.config import Columns
from cdc_core.errors import Refused, UsageError
from cdc_core.model.block import TableRows
from cdc_core.model.decimals import without_exponents
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.staged_columns import ABSENT, BEFORE_MARK, absent_text
from cdc_core.mysql.connections import variable_of
from cdc_core.source.capture.images import Images

HASH = ColumnType("char", length=64, charset="ascii", collation="ascii_bin")
"""A column of a source may have the same type: only this very object says that a value was replaced."""


@dataclass(frozen=True)
class Masking:
    """The rule `tables.columns`."""

    columns: Columns

    @cached_property
    def _hasher(self) -> Hasher:
        return Hasher(salt_of(self.columns))

    def masks(self, schema: TableSchema, column: str) -> bool:
        """Whether the value of this column is replaced by a hash."""
        return self._matches(self.columns.mask, schema, column)

    def excludes(self, schema: TableSchema, column: str) -> bool:
        """Whether this column is left out."""
        return self._matches(self.columns.exclude, schema, column)

    def _shape(self, schema: TableSchema) -> TableSchema:
        """The definition of the remaining columns; the same object if no value is left out or replaced."""
        kept = tuple(
            replace(column, type=HASH) if self.masks(schema, column.name) else column
            for column in schema.columns
            if not self.excludes(schema, column.name)
        )
        touched = len(kept) < len(schema.columns) or any(column.type is HASH for column in kept)
        return replace(schema, columns=_usable(schema, kept)) if touched else schema

    def _matches(self, patterns: Sequence[str], schema: TableSchema, column: str) -> bool:
        """In any letter case: to a server, a column that is renamed from `email` to `Email` has the same name."""
        return any(re.fullmatch(pattern, f"{schema.name}.{column}", re.IGNORECASE) for pattern in patterns)

    def apply(self, part: TableRows) -> TableRows:
        """Raises Refused (config.table_rule), UsageError (config.unset)."""
        schema = self._shape(part.schema)
        if schema is part.schema:
            return part
        masked = [column.name for column in schema.columns if column.type is HASH]
        gone = {column.name for column in part.schema.columns} - {column.name for column in schema.columns}
        images = Images.of(part.rows, part.schema)
        entries = images.literals
        after, before = dict(images.after), dict(images.before)
        for name in masked:
            for mark, image in (("", after), (BEFORE_MARK, before)):
                odd = entries.where(entries.among([mark + name]))
                image[name] = self._hasher.hashed(_with_texts(_bytes(image[name]), odd.row, odd.text))
        spent = [mark + name for name in (*masked, *gone) for mark in ("", BEFORE_MARK)]
        left = replace(images, after=after, before=before).with_literals(entries.where(~entries.among(spent)))
        return replace(part, schema=schema, rows=_without(left, gone).rows(schema))


class Hasher:
    """SHA-256 of salt and value in hex, by DuckDB, which has it in columns. For one thread."""

    def __init__(self, salt: bytes) -> None:
        import duckdb  # costs a tenth of a second, which only a pipeline with masks should pay

        self._salt = pa.scalar(salt, pa.binary())
        self._connection = duckdb.connect(config={"threads": 1})

    def hashed(self, values: pa.BinaryArray) -> pa.StringArray:
        """Null stays null."""
        salted = pc.binary_join_element_wise(self._salt, values, pa.scalar(b"", pa.binary()))
        found = self._connection.from_arrow(pa.table({"v": salted})).project("sha256(v) AS h").to_arrow_table()
        return found.column("h").cast(pa.string()).combine_chunks()


def salt_of(columns: Columns) -> bytes:
    """The salt of the masks. Raises UsageError (config.unset)."""
    assert columns.salt is not None  # the pipeline file was parsed
    variable = variable_of(columns.salt)
    salt = os.environ.get(variable)
    if not salt:
        raise UsageError(
            f"The environment variable {variable}, the salt of masked columns, is not set.",
            where="tables.columns.salt",
            code="config.unset",
            remedy=f"export {variable} where the source is read: a long random text that never changes",
        )
    return salt.encode()


def _usable(schema: TableSchema, kept: tuple[Column, ...]) -> tuple[Column, ...]:
    names = {column.name for column in kept}
    problem = ""
    if not kept:
        problem = "no columns remain"
    elif not names.issuperset(schema.key):
        problem = f"{next(name for name in schema.key if name not in names)} is part of the key"
    else:
        vectors = [
            column.name for column in kept if column.type is HASH and schema.column(column.name).type.base == "vector"
        ]
        problem = f"{vectors[0]} is a VECTOR, which has no text" if vectors else ""
    if problem:
        raise Refused(
            f"tables.columns does not fit {schema.name}: {problem}.",
            where="tables.columns",
            code="config.table_rule",
            remedy="leave the column as it is, mask a key column instead of excluding it, or exclude the table",
        )
    return kept


def _bytes(values: pa.Array) -> pa.BinaryArray:
    if pa.types.is_binary(values.type):
        return values
    text = values.cast(pa.string())
    return (without_exponents(text) if pa.types.is_decimal(values.type) else text).cast(pa.binary())


def _with_texts(values: pa.BinaryArray, row: npt.NDArray[np.int64], text: pa.StringArray) -> pa.BinaryArray:
    """The values, with the exact texts of those that their typed column could not hold."""
    mask = np.zeros(len(values), np.bool_)
    mask[row] = True
    return pc.replace_with_mask(values, pa.array(mask), text.cast(pa.binary()))


def _without(images: Images, gone: Collection[str]) -> Images:
    """`_cdc_absent` without removed columns."""
    absent = images.notes[ABSENT]
    texts = [json.loads(text) for text in absent.dictionary.to_pylist()]
    kept = [[name for name in names if name.removeprefix(BEFORE_MARK) not in gone] for names in texts]
    told = pa.array([absent_text(names) for names in kept], pa.string())
    return images.with_notes(**{ABSENT: told.take(absent.indices).dictionary_encode()})
