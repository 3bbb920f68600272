"""Updates of JSON that the log has as differences (binlog_row_value_options = PARTIAL_JSON).

Layout (MySQL sql-common/json_diff.h, Json_diff_vector): differences, one after the other, each an operation byte, the
length of a path in lenenc and the path, `$.a[0]`, and but for a REMOVE the length of a value in lenenc and the
value in binary JSON. None at all: the value stays. Application: json_diff.cc, apply_json_diffs.
Keeps true: a difference that does not match the value is an error, never skipped. Scalars keep the server's own text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from cdc_core.binlog.json import JsonError, json_text, quoted
from cdc_core.binlog.wire import WireCursor

REPLACE, INSERT, REMOVE = range(3)

_LEG = re.compile(r'\[\s*(last\s*-?\s*)?(\d*)\s*\]|\.("(?:[^"\\]|\\.)*"|[^".\[]+)', re.DOTALL)


class _Number(str):
    """A number as the server writes it."""


def patched(before: bytes, differences: bytes, where: str) -> str:
    """The server's text of a value (binary JSON) after these differences.

    Raises JsonError, DataAtRisk `source.log_damaged`.
    """
    root = [_parsed(before)]
    for operation, path, value in _read(differences, where):
        # The root is wrapped in a list, so that every path leads to a member of something.
        *way, last = [0, *_legs(path)]
        place: Any = root
        try:
            for leg in way:
                place = _member(place, leg)
            if operation == INSERT:
                _insert(place, last, value)
            elif operation == REPLACE:
                _member(place, last)
                place[last] = value
            else:
                _member(place, last)
                del place[last]
        except (KeyError, IndexError) as error:
            raise JsonError(f"a difference at {path}, which the JSON value does not have") from error
    return _printed(root[0])


def _read(raw: bytes, where: str) -> Iterator[tuple[int, str, Any]]:
    read = WireCursor(raw, "a difference of JSON", where)
    while read.left:
        operation = read.u8()
        if operation > REMOVE:
            raise read.error(f"operation {operation}")
        path = read.name(read.take(read.lenenc()))
        yield operation, path, None if operation == REMOVE else _parsed(read.take(read.lenenc()))


def _parsed(binary: bytes) -> Any:
    return json.loads(json_text(binary), parse_int=_Number, parse_float=_Number)


def _legs(path: str) -> list[str | int]:
    """Names, and places in arrays; negative ones count from the end."""
    legs: list[str | int] = []
    at = 1
    while at < len(path) or path[:1] != "$":
        leg = _LEG.match(path, at)
        if leg is None or path[0] != "$":
            raise JsonError(f"the path {path!r} of a difference")
        at = leg.end()
        name = leg[3]
        if name is None:
            index = int(leg[2] or 0)
            legs.append(-1 - index if leg[1] else index)
        else:
            legs.append(json.loads(name, strict=False) if name[0] == '"' else name)
    return legs


def _member(place: Any, leg: str | int) -> Any:
    if isinstance(place, list) is not isinstance(leg, int) or not isinstance(place, list | dict):
        raise KeyError(leg)
    member: Any = place  # a list by place, an object by name
    return member[leg]


def _insert(place: Any, leg: str | int, value: Any) -> None:
    if isinstance(leg, int) and isinstance(place, list):
        place.insert(leg if leg >= 0 else max(0, len(place) + leg), value)
    elif isinstance(leg, str) and isinstance(place, dict) and leg not in place:
        place[leg] = value
    else:
        raise KeyError(leg)


def _printed(node: Any) -> str:
    if isinstance(node, dict):
        # Members are in order of length, then of bytes.
        members = sorted((len(name.encode()), name.encode(), name) for name in node)
        return "{" + ", ".join(f"{quoted(name)}: {_printed(node[name])}" for _, _, name in members) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(_printed, node)) + "]"
    if isinstance(node, _Number):
        return str(node)
    return quoted(node) if isinstance(node, str) else {None: "null", True: "true", False: "false"}[node]
