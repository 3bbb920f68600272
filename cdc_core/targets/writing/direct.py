"""Rows that go straight into an empty table: one LOAD DATA into it, with nothing between file and table.

The caller has the lock by which the writers of a table take turns, and has begun the transaction. The load may be done
only where the guarded write would do nothing but insert every row as it is: see `fits` and `load_empty`. If it turns
out that it would do more, the caller undoes everything and takes the guarded write.

An empty table makes that likely; what makes it certain is the load itself. LOCAL skips a row whose key, or another
unique value, the table has: of whatever session, before the look or after it. It also skips or changes a row that does
not fit. So every row must have been taken without a warning. The quality check finds what a trigger has changed that
the account cannot see.

Several source tables may feed the table: it has no row and no tombstone of another one, and a file has a key once.

Deletes may be among the rows, as of rows that were copied and are gone since: an empty table only has to remember them.
They are kept aside of the file (LoadFile.aside), and their tombstones are written in the same transaction.

The rows of a part (write_parts.py) go straight into a table whose other parts are there already, if the range of their
keys is empty: all of this then holds for that range. What no key of the range has cannot matter to a row of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc_core.model.version import VERSION_COLUMN
from cdc_core.targets.reading.table_facts import TableFacts, table_name
from cdc_core.targets.tables.key_range import KeyRange
from cdc_core.targets.writing.load import (
    TEMPORARY,
    LoadFile,
    create_temporary,
    load,
    send,
    target_name,
    warnings_of,
)
from cdc_core.targets.writing.target_truncates import truncates_of
from cdc_core.targets.writing.versions import on_key, tombstones_name


def fits(facts: TableFacts, file: LoadFile) -> bool:
    """Whether all lines of the file are upserts with all values, and the table treats no column or row specially."""
    # MariaDB's LOAD DATA ... SET gives 0 the next number, whatever the sql_mode.
    no_zero = {facts.by_name[file.layout.key[0].lower()].name} if file.key_range and file.key_range.least[0] > 0 else ()
    plain_table = (
        facts.versioned
        and not (facts.beside or facts.keyless or facts.coarser or facts.triggers)
        and not any(column.generated for column in facts.columns)
        and all(column.name in no_zero for column in facts.columns if column.counted)
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
    if warnings_of(cursor) or taken != file.lines:
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
