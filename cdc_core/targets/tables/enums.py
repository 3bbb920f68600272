"""The error value of an ENUM, index 0, where '' is a label as well: both print as '', and the target keeps them apart.

The rows say which '' is the error value by an empty text in `_cdc_literal`. A server stores index 0 without a warning
only where one ENUM column is copied to another as it is: not from text or numbers, and not through IF, which makes text
of it. So it is set in the temporary table by a lenient statement, and copied once more wherever IF was in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdc_core.mysql.connections import quote
from cdc_core.targets.reading.table_facts import TableFacts, TargetColumn

_CHUNK = 1000
ERROR_TEXT = "\0" * 256
"""What the error value is read as; a label has at most 255 characters."""


def ambiguous(facts: TableFacts, columns: Sequence[str]) -> list[TargetColumn]:
    """ENUM columns of the target in which '' is a label."""
    found = (facts.by_name[name.lower()] for name in columns)
    return [one for one in found if one.type.base == "enum" and "" in one.type.labels]


def error_or(facts: TableFacts, name: str, text: str) -> str:
    """SQL: ERROR_TEXT for the error value of the row `r` where '' is a label too, else the text, an expression."""
    if not ambiguous(facts, [name]):
        return text
    column = quote(facts.by_name[name.lower()].name)
    return f"IF(r.{column} + 0 = 0, REPEAT(_utf8mb4 X'00', {len(ERROR_TEXT)}), {text})"


def set_error_values(cursor: Any, temporary: str, column: TargetColumn, rows: Sequence[int]) -> None:
    """Sets index 0 in these rows, by number, of the temporary table."""
    cursor.execute("SELECT @@SESSION.sql_mode")
    (mode,) = cursor.fetchone()
    cursor.execute("SET SESSION sql_mode = ''")
    try:
        for first in range(0, len(rows), _CHUNK):
            numbers = ", ".join(map(str, rows[first : first + _CHUNK]))
            cursor.execute(f"UPDATE {temporary} SET {quote(column.name)} = 0 WHERE _n IN ({numbers})")
    finally:
        cursor.execute("SET SESSION sql_mode = %s", (mode,))


def copy_error_values(cursor: Any, joined: str, column: TargetColumn, *, to: str, of: str, where: str) -> None:
    """Copies index 0 between the aliases of a join, where a statement before has made the label '' of it."""
    name = quote(column.name)
    cursor.execute(f"UPDATE {joined} SET {to}.{name} = {of}.{name} WHERE {of}.{name} + 0 = 0 AND {where}")
