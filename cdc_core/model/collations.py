"""Names of collations and character sets: equal names mean equal comparisons.

MariaDB accepts the names of MySQL's Unicode 9 collations as aliases of its own Unicode 14 collations, which treat other
characters as equal. Lockstep calls such a collation by MariaDB's own name.
"""

from __future__ import annotations

import re

LANGUAGES = {
    "de_pb": "german2", "is": "icelandic", "lv": "latvian", "ro": "romanian", "sl": "slovenian", "pl": "polish",
    "et": "estonian", "es": "spanish", "sv": "swedish", "tr": "turkish", "cs": "czech", "da": "danish",
    "lt": "lithuanian", "sk": "slovak", "es_trad": "spanish2", "la": "roman", "eo": "esperanto", "hu": "hungarian",
    "hr": "croatian", "vi": "vietnamese",
}  # fmt: skip
"""MySQL's names of languages in collations of Unicode 9, and MariaDB's in those of Unicode 14."""
UNICODE_9 = re.compile(r"^utf8mb4_(?:(\w+?)_)?0900_(ai_ci|as_ci|as_cs|bin)$")

UNCERTAIN = "utf8mb4_0900_BIN"
"""MariaDB's alias of MySQL's utf8mb4_0900_bin. It ignores trailing spaces in 11.4 and not in 11.8, so that two servers
may compare it differently. The letters keep the name apart from MySQL's; a server takes either."""


def own_name(collation: str, *, mariadb: bool) -> str:
    """The server's own name of a collation; "" for ""."""
    match = UNICODE_9.match(collation) if mariadb else None
    if match is None:
        return collation
    if match[2] == "bin":
        return UNCERTAIN
    return "_".join(filter(None, ("utf8mb4_uca1400", LANGUAGES.get(match[1] or ""), "nopad", match[2])))


def spell_out_utf8(name: str) -> str:
    """A character set or collation with utf8mb3 in place of utf8, as older servers call it."""
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name)
