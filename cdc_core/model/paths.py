"""How names become segments of the stage's paths.

A segment keeps ASCII letters, digits, '_', '-' and '.'; every other UTF-16 unit of the name is '@' and four hexadecimal
digits, as in the names of MySQL's own table files. No tool takes '@' for an escape, so DuckDB, Spark, pyarrow and
pandas open the path as it is printed and see the same partition value. (Spark takes each byte of '%XX' for a
character; a JVM under a POSIX locale cannot see a name that is not ASCII.) Different names never share a segment.
Names whose segment would be longer than file systems allow end in '~' and a hash instead.
"""

from __future__ import annotations

import hashlib
import re

LONGEST_NAME = 192
"""Characters of the name of a logical table, at most: the meta database takes no more."""
_LONGEST = 200
_HASH = 16
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")


def segment(name: str) -> str:
    """A name as a part of a path; see the module's docstring."""
    text = _OTHER.sub(_escaped, name)
    if text in (".", ".."):
        return text.replace(".", "@002e")
    if len(text) <= _LONGEST:
        return text
    kept = re.sub(r"@[0-9a-f]{0,3}$", "", text[: _LONGEST - _HASH - 1])
    return f"{kept}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_HASH]}"


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"@{units[at : at + 4]}" for at in range(0, len(units), 4))
