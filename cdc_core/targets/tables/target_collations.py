"""Collations that a server does not have, and what takes their place there.

Columns whose values must be told apart (keys and unique keys) get the collation that compares bytes, trailing spaces
included: it keeps apart whatever the source keeps apart. Other columns get the nearest one, which orders and compares
most texts alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from cdc_core.model.collations import LANGUAGES, UNICODE_9, own_name

_ISO = {name: code for code, name in LANGUAGES.items()}
_UNICODE_14 = re.compile(r"^\w+?_uca1400_(?:([a-z0-9]+)_)??(?:nopad_)?(ai_ci|as_ci|as_cs|ai_cs)$")
BYTES = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")
"""Compare bytes and trailing spaces: MySQL's and MariaDB's name of the same collation."""


def substitute(charset: str, collation: str, known: Collection[str], *, apart: bool) -> tuple[str, str]:
    """The character set and the collation of a server for one that it may not have; unchanged if it has it.

    known: the server's collations, by their own names. apart: values that differ on the source must differ there too.
    """
    if collation in known:
        return charset, collation
    if apart or collation in BYTES:
        return "utf8mb4", next(candidate for candidate in BYTES if candidate in known)
    for candidate in (*_nearest(collation), f"{charset}_bin"):
        if candidate in known:
            return charset, candidate
    return "utf8mb4", next(
        candidate
        for candidate in ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_unicode_ci")
        if candidate in known
    )


def _nearest(collation: str) -> list[str]:
    if match := UNICODE_9.match(collation):
        general = f"utf8mb4_uca1400_nopad_{match[2]}"
        return [own_name(collation, mariadb=True), general, "utf8mb4_unicode_520_nopad_ci"]
    if (match := _UNICODE_14.match(collation)) and collation.startswith("utf8mb4_"):
        code, strength = _ISO.get(match[1] or "", ""), match[2].replace("ai_cs", "as_cs")
        named = [f"utf8mb4_{code}_0900_{strength}"] if code else []
        return [*named, f"utf8mb4_0900_{strength}", "utf8mb4_unicode_520_ci"]
    padded = collation.replace("_nopad_", "_")
    return [padded, re.sub(r"_uca1400_(?:[a-z0-9]+_)?a[is]_c[is]$", "_unicode_ci", padded)]
