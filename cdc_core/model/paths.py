"""How names become segments of the stage's paths.

A segment keeps ASCII letters, digits, '_', '-' and '.'; every other byte of the name's UTF-8 is %XX, which Spark
reads back as the partition's value (for ASCII: of other characters it takes each byte for one). Different names never
share a segment. Names whose segment would be longer than file systems allow end in '~' and a hash instead ('~' itself
is always written %7E).
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

_LONGEST = 200
_HASH = 16


def segment(name: str) -> str:
    """A name as a part of a path; see the module's docstring."""
    text = quote(name, safe="").replace("~", "%7E")
    if text in (".", ".."):
        return text.replace(".", "%2E")
    if len(text) <= _LONGEST:
        return text
    kept = re.sub(r"%.?$", "", text[: _LONGEST - _HASH - 1])
    return f"{kept}~{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"
