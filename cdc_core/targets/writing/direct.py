"""Rows that go straight into an empty table: one LOAD DATA into it, with nothing between file and table.

The caller has the lock by which the writers of a table take turns, and has begun the transaction. The load may be done
only where the guarded write would do nothing but insert every row as it is: see `fits` and `load_empty`. If it turns
out that it would do more, the caller undoes everything and takes the guarded write.

An empty table makes that likely; what makes it certain is the load itself. LOCAL skips a row whose key, or another
unique value, the table has: of whatever session, before the look or after it. It also skips or changes a row that does
not fit. So every row must have been taken without a warning. Then the keys and versions in the table are compared with
those of the file, by a sum: a trigger, which the account may not be able to see, could have changed a key.

Several source tables may feed the table: it has no row and no tombstone of another one, and a file has a key once.

Deletes may be among the rows, as of rows that were copied and are gone since: an empty table only has to remember them.
They are kept aside of the file (LoadFile.aside), and their tombstones are written in the same transaction.

The rows of a part (target.parts) go straight into a table whose other parts are there already, if the range of their
keys is empty: all of this then holds for that range. What no key of the range has cannot matter to a row of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from cdc_core.model.schema import INTEGER_BYTES, TEXT_BASES
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.tables.key_range import KeyRange
from cdc_core.targets.writing.load import (
    TEMPORARY,
    LoadFile,
    create_temporary,
    load,
    reserved,
    send,
    target_name,
    warnings_of,
)
from cdc_core.targets.writing.target_truncates import truncates_of
from cdc_core.targets.writing.versions import as_text, on_key, table_name, tombstones_name

_COMPARED = frozenset(INTEGER_BYTES) | TEXT_BASES | {"binary", "varbinary"}
"""Types of key columns whose values a server prints as the file has them."""


def fits(facts: TableFacts, file: LoadFile) -> bool:
    """Whether all lines of the file are upserts with all values, and the table treats no column or row specially."""
    keys = {facts.by_name[name.lower()].name for name in file.layout.key}
    plain_table = (
        facts.versioned
        and not (facts.beside or facts.keyless or facts.coarser or facts.triggers)
        and all(facts.by_name[name.lower()].type.base in _COMPARED for name in keys)
        and not any(column.generated or reserved(column) for column in facts.columns)
        # MariaDB's LOAD DATA ... SET gives 0 the next number, whatever the sql_mode. In the key, it would be noticed.
        and all(column.name in keys for column in facts.columns if column.counted)
    )
    plain_rows = (
        file.lines
        and file.only_upserts
        and not (file.absent or file.truncates or file.decimals or file.error_values or file.no_text)
    )
    if not (plain_table and plain_rows):
        return False
    loaded = {facts.by_name[name.lower()].name for name in file.layout.columns}
    # The defaults of other columns may be expressions; a server may store another value for null than NULL.
    return all(column.name in loaded or column.name == VERSION_COLUMN for column in facts.columns) and all(
        facts.by_name[name.lower()].nullable for name in file.nulls
    )


def is_empty(cursor: Any, facts: TableFacts, keys: KeyRange | None = None) -> bool:
    """Whether the table has no rows, as far as other transactions show theirs. It only says what is worth trying. keys:
    only these count."""
    cursor.execute(f"SELECT EXISTS(SELECT 1 FROM {table_name(facts)}{_within(facts, keys)})")
    return not cursor.fetchone()[0]


def prepare_deletes(cursor: Any, facts: TableFacts, file: LoadFile) -> None:
    """Loads the deletes that are aside into the temporary table; before the transaction. Raises what `load` raises."""
    if file.aside:
        with LoadFile(file.path.parent, file.layout) as deletes:
            for batch in file.aside:
                deletes.add(batch)
            create_temporary(cursor, facts, file.layout)
            load(cursor, facts, deletes)


def load_empty(cursor: Any, facts: TableFacts, file: LoadFile, keys: KeyRange | None = None) -> bool:
    """Loads all rows of a file that `fits` into the table; whether that was all there was to do. If not, the
    transaction must be undone. keys: of the file; None: nothing else may be in the table."""
    if not is_empty(cursor, facts, keys) or _remembers(cursor, facts, keys):
        return False
    kept = ("@_k", "@_o", "@_v", "@_a", "@_p", "@_j")
    taken = send(cursor, facts, file, into=table_name(facts), kept=kept, version=VERSION_COLUMN)
    if warnings_of(cursor) or taken != file.lines or not _as_in_file(cursor, facts, file, keys):
        return False
    return not file.aside or _remember(cursor, facts, file.layout.key)


def _remember(cursor: Any, facts: TableFacts, key: Sequence[str]) -> bool:
    """Leaves tombstones for the loaded deletes; whether none of their keys is equal to that of a row of the table. If
    two of them are equal in the table, the server finds a tombstone twice."""
    names = [target_name(facts, name) for name in key]
    cursor.execute(f"SELECT 1 FROM {TEMPORARY} _l STRAIGHT_JOIN {table_name(facts)} r ON {on_key(facts, key)} LIMIT 1")
    if cursor.fetchone() is not None:
        return False
    cursor.execute(
        f"INSERT INTO {tombstones_name(facts)} ({', '.join([*names, VERSION_COLUMN])}) "
        f"SELECT {', '.join(f'_l.{name}' for name in names)}, _l._v FROM {TEMPORARY} _l"
    )
    return True


def _within(facts: TableFacts, keys: KeyRange | None) -> str:
    return f" WHERE {keys.sql([target_name(facts, name) for name in keys.columns])}" if keys else ""


def _remembers(cursor: Any, facts: TableFacts, keys: KeyRange | None) -> bool:
    """Whether there are tombstones, also those of a transaction that is not committed yet, or truncates."""
    cursor.execute(f"SELECT 1 FROM {tombstones_name(facts)}{_within(facts, keys)} LIMIT 1 FOR UPDATE")
    return cursor.fetchone() is not None or bool(truncates_of(cursor, facts))


def _as_in_file(cursor: Any, facts: TableFacts, file: LoadFile, keys: KeyRange | None) -> bool:
    """Whether the table has exactly the keys of the file's lines, each with its version. keys: only in this range."""
    key = file.layout.key
    names = [as_text(facts, name, name in file.binary) for name in key]
    if len(key) > 1:  # as in text.row_keys
        names = [
            rf"REPLACE(REPLACE({text}, '\\', '\\\\'), ',', '\\,')" if _is_text(facts, name) else text
            for name, text in zip(key, names, strict=True)
        ]
    named = f"CONCAT_WS('\t', CONCAT_WS(',', {', '.join(names)}), HEX(r.{VERSION_COLUMN}))"
    there = f"{table_name(facts)} r{_within(facts, keys)}"
    cursor.execute(f"SELECT COUNT(*), COALESCE(SUM(CRC32({named})), 0) FROM {there}")
    rows, total = cursor.fetchone()
    return bool(int(rows) == file.lines and int(total) == _sum_of(file))


def _is_text(facts: TableFacts, name: str) -> bool:
    return facts.by_name[name.lower()].type.base in TEXT_BASES


def _sum_of(file: LoadFile) -> int:
    total = 0
    with file.path.open("rb") as lines:
        for line in lines:
            key, _, version, _ = line.split(b"\t", 3)
            total += crc32(_unescaped(key) + b"\t" + version)
    return total


def _unescaped(text: bytes) -> bytes:
    """A field without the escapes of text.escaped."""
    return _ESCAPE.sub(lambda found: _PLAIN.get(found[1], found[1]), text) if b"\\" in text else text


_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN = {b"t": b"\t", b"n": b"\n", b"0": b"\0"}
