"""A server's message about a row that it rejects, without the row's values.

Such texts end up in logs, in the meta database and on the page; values belong only in the run's files, with the rows.
Keeps true: of a quoted text only the names of columns, keys, constraints and tables are left.
"""

from __future__ import annotations

import re

from pymysql.err import MySQLError

from cdc_core.mysql.connections import one_line

_SIGNAL = 1644
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^Duplicate entry '.*' for key (?P<rest>'[^']*')$", re.S), "Duplicate entry for key {rest}"),
    (
        re.compile(
            r"^(?P<what>(?:Truncated i|I)ncorrect .+? (?:value|string)): '.*'(?P<rest> for (?:column|function) .*)?$",
            re.S,
        ),
        "{what}{rest}",
    ),
    (re.compile(r"^(?P<what>Invalid .+? (?:string|value)): '.*'(?P<rest> in column .*)?$", re.S), "{what}{rest}"),
)
_NAMES_ONLY = frozenset({1048, 1054, 1146, 1264, 1265, 1364, 1406, 1451, 1452, 1526, 3140, 3819, 4025, _SIGNAL})
"""Errors whose texts quote names only. 1644 is a trigger's own: its author decides what it says."""
_QUOTED = re.compile(r"'(?:[^']|'')*'?", re.S)


def without_values(number: int, text: str) -> str:
    """The server's message of an error or warning."""
    for pattern, kept in _PATTERNS:
        match = pattern.match(text)
        if match:
            return one_line(kept.format(**{name: found or "" for name, found in match.groupdict().items()}))
    return one_line(text if number in _NAMES_ONLY else _QUOTED.sub("'…'", text))


def reason(error: MySQLError) -> str:
    """Why a statement failed, with the error's number."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return f"{without_values(number, str(error.args[-1]))} ({number})"
