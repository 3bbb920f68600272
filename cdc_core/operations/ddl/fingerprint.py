"""A table's definition as a value that two shards have in common exactly if they are defined alike.

It is the text of SHOW CREATE TABLE without what belongs to one table alone: its name, the next AUTO_INCREMENT, and the
names of CHECK constraints, which MySQL makes from the table's. Only texts of one server's kind and version compare.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.mysql.connections import quote
from cdc_core.mysql.server_errors import NO_TABLE, number_of

_HEAD = re.compile(r"^CREATE TABLE `(?:[^`]|``)*` \(")
_NEXT = re.compile(r"^(\) .*?) AUTO_INCREMENT=\d+", re.MULTILINE)
_CHECK = re.compile(r"^(\s+)CONSTRAINT `(?:[^`]|``)*` CHECK ", re.MULTILINE)
_FOREIGN = re.compile(r",\n\s+CONSTRAINT `(?:[^`]|``)*` FOREIGN KEY [^\n]*?(?=,?\n)")


@dataclass(frozen=True, slots=True)
class DefinitionFingerprint:
    """text: the definition. digest: of it, in short."""

    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def without_foreign_keys(self) -> DefinitionFingerprint:
        """A copy by CREATE TABLE ... LIKE has none."""
        return DefinitionFingerprint(_FOREIGN.sub("", self.text))


def fingerprint(connection: pymysql.Connection[Any], database: str, table: str) -> DefinitionFingerprint | None:
    """None for a table that is not there. Raises PyMySQL's errors."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"SHOW CREATE TABLE {quote(database, table)}")
        except pymysql.err.MySQLError as error:
            if number_of(error) in NO_TABLE:
                return None
            raise
        row = cursor.fetchone()
    text = row[1].decode() if isinstance(row[1], bytes) else str(row[1])
    return DefinitionFingerprint(_CHECK.sub(r"\1CHECK ", _NEXT.sub(r"\1", _HEAD.sub("CREATE TABLE (", text))))
