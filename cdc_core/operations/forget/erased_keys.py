"""The keys whose rows are erased, and which changes are about them: by canonical texts, as verifications compare keys.

It must keep true that a change is found by the key before it and by the key after it. A change that leads from one of
the keys to another key is about both: erased alone it would leave the other key's row as it was, so both must be named.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import Refused, UsageError
from cdc_core.history.codes import whole
from cdc_core.history.events import LOST
from cdc_core.history.rule import TableRule
from cdc_core.model.batch import Part
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, Column, TableSchema
from cdc_core.model.staged_columns import BEFORE, OP, ROW, SEQ, TRUNCATE
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.repair.repaired_keys import LOOKED_UP
from cdc_core.operations.verify.canonical import SEPARATOR, canonical_text, key_text, row_texts, values_of
from cdc_core.operations.verify.verify_job import digest
from cdc_core.stage.erasing import Place
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events
from cdc_core.stage.table_files import GIVE_KEY, TableFiles, require_key
from cdc_core.stage.unify import latest_definitions

log = logging.getLogger(__name__)

_INEXACT = frozenset({"float", "double"})
_DIGITS = dict.fromkeys(("decimal", "datetime", "timestamp", "time"), r"(?:\.0+)?")
_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?"
_FORMS = {
    "decimal": r"-?\d+(\.\d+)?", "date": _DATE, **dict.fromkeys(("datetime", "timestamp"), f"{_DATE} {_TIME}"),
    "time": rf"-?\d?{_TIME}", "binary": r"([0-9A-F]{2})*",
}  # fmt: skip
"""Of canonical texts, by type. Other types take any text."""
_LONG = 6
"""Characters of a value that no other text has by chance."""
_IGNORES_ACCENTS = re.compile(r"_ai_c[is]$|^(utf|ucs)(?!.*_as_ci$).*_ci$")
_KEEPS_SPACES = re.compile(r"nopad|0900", re.IGNORECASE)
"""In names of collations."""
_MOST_OPTIONS = 20
CUT = "…"
"""After a key that is too long for an error."""


@dataclass(frozen=True, slots=True)
class ChangesFound:
    """Of one file. keys: of those that are erased, which it has. others: keys that its changes lead to or from, or that
    the table takes for one of these."""

    places: frozenset[Place] = frozenset()
    keys: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ErasedKeys:
    """table: a logical one. columns: of its key. texts: of the keys, as `row_texts` has them."""

    table: str
    columns: tuple[Column, ...]
    texts: frozenset[str]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def _collations(self) -> list[str]:
        return [column.type.collation for column in self.columns if column.type.base in TEXT_BASES]

    def alike(self, texts: pa.StringArray) -> pa.StringArray:
        """Equal for keys that are one key of the table, as far as the names of its collations tell: those that differ
        in letter case, accents or trailing spaces."""
        if not all(name.endswith(("_bin", "_cs")) for name in self._collations):
            texts = pc.utf8_lower(texts)
        if any(map(_IGNORES_ACCENTS.search, self._collations)):
            texts = pc.replace_substring_regex(pc.utf8_normalize(texts, "NFKD"), r"\p{Mn}+", "")
        if not all(_KEEPS_SPACES.search(name) for name in self._collations):
            texts = pc.replace_substring_regex(texts, rf" +({SEPARATOR}|$)", r"\1")
        return texts

    @cached_property
    def wanted(self) -> pa.Array:
        return pa.array(sorted(self.texts), pa.string())

    def sha256(self, pipeline: str) -> str:
        """A digest of the table and the keys."""
        return digest([pipeline, self.table, sorted(self.texts)])

    def shown(self, text: str) -> str:
        """A key, for people."""
        return ", ".join(f"{name}={value}" for name, value in zip(self.key, values_of(text), strict=True))

    def options(self, texts: Collection[str]) -> str:
        """Keys, as options of a command line."""
        left = f" and {len(texts) - _MOST_OPTIONS:,} more keys" if len(texts) > _MOST_OPTIONS else ""
        return " ".join(map(self._option, sorted(texts)[:_MOST_OPTIONS])) + left

    def _option(self, text: str) -> str:
        values = dict(zip(self.key, values_of(text), strict=True))
        given = ",".join(f"{name}={value}" for name, value in values.items())
        if given.count(",") >= len(values) > 1:
            given = json.dumps(values, ensure_ascii=False)
        return f"--key {shlex.quote(given)}"

    def changes_in(self, store: ObjectStore, part: Part, schema: TableSchema) -> ChangesFound:
        """Raises DataAtRisk (stage.damaged), Refused (stage.key)."""
        own = {column.name.lower(): column for column in schema.columns}
        columns = [replace(own[name.lower()], name=name) for name in self.key]
        rule = TableRule(pa.schema([(column.name, column.type.arrow) for column in columns]), self.key)
        places: set[Place] = set()
        keys: set[str] = set()
        others: set[str] = set()
        lost = 0
        for events in file_events(store, FileOfEvents(part, schema, part.key_changes), rule):
            lost += pc.sum(events.column(LOST)).as_py() or 0
            rows = pa.RecordBatch.from_arrays([whole(column) for column in events.columns], schema=events.schema)
            rows = rows.filter(pc.not_equal(rows.column(OP).cast(pa.string()), TRUNCATE))
            texts = row_texts(rows, columns)
            mine = np.asarray(pc.is_in(texts, value_set=self.wanted))
            if self._collations:
                alike = np.asarray(pc.is_in(self.alike(texts), value_set=self.alike(self.wanted)))
                others |= set(texts.filter(pa.array(alike & ~mine)).to_pylist())
            if not mine.any():
                continue
            found = set(_places(rows.filter(pa.array(mine))))
            places |= found
            keys |= set(texts.filter(pa.array(mine)).to_pylist())
            other = rows.filter(pa.array(~mine)), texts.filter(pa.array(~mine)).to_pylist()
            others |= {text for place, text in zip(_places(other[0]), other[1], strict=True) if place in found}
        require_key(self.table, self.key, lost)
        return ChangesFound(frozenset(places), frozenset(keys), frozenset(others))

    @cached_property
    def _values(self) -> list[tuple[str, str]]:
        """Each value of a key as texts have it, also beside others of a key (`row_keys`), and what may follow it, by a
        scale or by fractions of a second."""
        found = {
            (spelled, _DIGITS.get(column.type.base, ""))
            for text in self.texts
            for column, value in zip(self.columns, values_of(text), strict=True)
            if value
            for spelled in (value, value.replace("\\", "\\\\").replace(",", "\\,"))
        }
        return sorted(found, key=lambda pair: (-len(pair[0]), pair))

    def without_values(self, text: str) -> str:
        """A text for people, without values of the keys: also where they are cut, or written as digits of their bytes.
        Short ones count as words only."""
        for value, digits in self._values:
            if value in text:
                end = "0*" if digits and "." in value else digits
                bounds = (r"(?<![\w/:.-])", r"(?![\w/:-]|\.\w)") if len(value) < _LONG else ("", "")
                text = re.sub(f"{bounds[0]}{re.escape(value)}{end}{bounds[1]}", CUT, text)
            if len(value) >= _LONG:
                text = text.replace(value.encode().hex().upper(), CUT)
                for length in range(len(value) - 1, _LONG - 1, -1) if CUT in text else ():
                    text = text.replace(value[:length] + CUT, CUT)
        return text

    def rows_among(self, rows: pa.RecordBatch) -> int:
        """How many rows of a run's file have one of the keys."""
        return int(pc.sum(pc.is_in(row_texts(rows, self.columns), value_set=self.wanted)).as_py() or 0)

    def has(self, key: Mapping[str, str | None]) -> bool:
        """Whether a finding of a verification may be about one of the keys: also if it does not have all of its
        columns."""
        values = {name.lower(): value for name, value in key.items()}
        names = [name.lower() for name in self.key]
        return not set(names) <= set(values) or key_text([values[name] for name in names]) in self.texts


def _places(rows: pa.RecordBatch) -> Iterator[Place]:
    return zip(rows.column(SEQ).to_pylist(), rows.column(ROW).to_pylist(), strict=True)


def key_columns(files: TableFiles) -> tuple[Column, ...]:
    """The columns by which rows can be erased. Raises Refused (stage.key)."""
    different, name = files.keys_differ(), files.table
    if different:
        raise Refused(f"{name} has no key: {different}.", where=name, code="stage.key", remedy=GIVE_KEY)
    key = files.key(files.columns())
    if not key:
        raise Refused(
            f"{name} has no key, so nothing says which of its staged changes are of one row.",
            where=name,
            code="stage.key",
            remedy="give the table a primary key at the source, copy it again (`lockstep snapshot PIPELINE TABLE`), "
            "and purge what was staged before (`lockstep stage purge`)",
        )
    latest = {
        column.name.lower(): column for schema in latest_definitions(files.described) for column in schema.columns
    }
    columns = tuple(replace(latest[spelled.lower()], name=spelled) for spelled in key)
    for column in columns:
        if column.type.base not in LOOKED_UP - _INEXACT:
            raise Refused(
                f"Rows of {name} cannot be looked up by its key column {column.name} of the type {column.type}.",
                where=name,
                code="stage.key",
                remedy="give the table a key of another type",
            )
    return columns


def texts_of(given: Sequence[str], columns: Sequence[Column]) -> frozenset[str]:
    """given: keys as `--key` has them. Raises UsageError (usage.argument)."""
    return frozenset(_text(key, columns) for key in given)


def texts_where(opened: OpenPipeline, files: TableFiles, columns: Sequence[Column], sql: str) -> frozenset[str]:
    """The keys of rows that a condition was ever true of, in any staged change, before it or after it.

    Raises UsageError (stage.sql), Refused (stage.key), and what reading staged changes raises.
    """
    from cdc_core.stage.public import read_chains  # DuckDB, which only conditions need
    from cdc_core.stage.scratch_duckdb import quoted
    from cdc_core.stage.sql_views import sql as run_sql

    chains = read_chains(
        opened.store, opened.pipeline, [source.name for source in opened.pipeline.sources], log.warning
    )
    view, every = quoted(f"{files.table}_changes"), [quoted(field.name) for field in files.columns()]
    key = [quoted(column.name) for column in columns]
    after, before = ", ".join(every), ", ".join(f"{BEFORE}.{name} AS {name}" for name in every)
    query = (
        f"SELECT DISTINCT {', '.join(key)} FROM (SELECT {after} FROM {view} WHERE {OP} <> '{TRUNCATE}' "
        f"UNION ALL SELECT {before} FROM {view} WHERE {BEFORE} IS NOT NULL) WHERE (\n{sql}\n)"
    )
    found = run_sql(opened.store, chains.by_source, query, partial=True).combine_chunks()
    arrays = [whole(found.column(column.name)).cast(column.type.arrow) for column in columns]
    if any(array.null_count for array in arrays):
        raise Refused(
            f"The condition is true of a row of {files.table} whose key its type does not hold.",
            where=files.table,
            code="stage.key",
            remedy="add to the condition that the key is not null, and give the key of that row by --key",
        )
    rows = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
    return frozenset(row_texts(rows, columns).to_pylist())


def _text(given: str, columns: Sequence[Column]) -> str:
    values = {name.lower(): value for name, value in _values(given, len(columns)).items()}
    names = [column.name.lower() for column in columns]
    if set(values) != set(names):
        raise _not_a_key(given, columns)
    texts = [canonical_text(values[name], column.type) for name, column in zip(names, columns, strict=True)]
    if not all(_is_value(text, column.type.base) for column, text in zip(columns, texts, strict=True)):
        raise _not_a_key(given, columns)
    return key_text(texts)


def _is_value(text: str, base: str) -> bool:
    """Whether rows may have this canonical text."""
    if base in INTEGER_BYTES or base in ("bit", "year"):
        return re.fullmatch(r"0|-?[1-9]\d*", text) is not None
    form = _FORMS.get("binary" if base in BINARY_BASES else base)
    return form is None or re.fullmatch(form, text) is not None


def _values(given: str, columns: int) -> dict[str, str]:
    """JSON, or NAME=VALUE; several are separated by commas, where the key has several columns."""
    if given.lstrip().startswith("{"):
        try:
            found = json.loads(given)
        except ValueError:
            return {}
        kinds = (str, int)
        return {name: str(value) for name, value in found.items() if type(value) in kinds}
    pairs = [given] if columns == 1 else given.split(",")
    return {name.strip(): value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}


def _not_a_key(given: str, columns: Sequence[Column]) -> UsageError:
    shown = ",".join(f"{column.name}=…" for column in columns)
    as_json = json.dumps({column.name: "…" for column in columns}, ensure_ascii=False)
    return UsageError(
        f"{given!r} is not a key: it has {', '.join(f'{column.name} ({column.type})' for column in columns)}.",
        where="--key",
        code="usage.argument",
        remedy=f"write {shown}, or as JSON {as_json}, with values as a SELECT shows them, binary ones as hex",
    )
