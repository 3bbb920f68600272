"""A statement of the log as messages and notes show it: without its values.

It must keep true that no value of a row and no password is shown, in whatever way a server parses the text.
"""

from __future__ import annotations

import re

from cdc_core.source.sql.client_text import decode
from cdc_core.source.sql.sql_tokens import TokenKind, tokens
from cdc_core.source.sql.statement_classes import Action, Statement


def shown(
    statement: Statement, sql: bytes, *, client_collation: int = 0, sql_mode: int | None = 0, mariadb: bool = True
) -> str:
    """A statement on one line, for messages and notes, without its values.

    These texts go to manifests, the meta database and logs, which must not contain masked columns and passwords. DML
    keeps its verb and tables. Other statements keep keywords, names and punctuation, but not strings, numbers or
    comments.
    """
    if statement.action is Action.DATA:
        names = "" if not statement.tables else f" {', '.join(f'{d}.{t}' for d, t in statement.tables)}"
        return f"{statement.verb}{names} …"
    words: list[str] = []
    length = 0
    text = decode(sql, client_collation)
    if text is None:
        return f"{statement.verb} …"
    for token in tokens(text, sql_mode or 0, mariadb_code=mariadb):
        if token.kind is TokenKind.SIGN and token.text in _QUOTES:
            # An unterminated quote: from the first one on, it is unknown where strings begin and end.
            words[words.index("?") if "?" in words else len(words) :] = ["…"]
            break
        hidden = token.kind in (TokenKind.STRING, TokenKind.NUMBER) or (
            token.kind is TokenKind.WORD and token.text[0].isdigit()
        )
        if token.kind is TokenKind.STRING and words and words[-1].lower() in _INTRODUCERS:
            words.pop()  # x'4142', b'01'
        words.append("?" if hidden else token.text)
        length += len(words[-1]) + 1
        if length > _SHOWN:
            words.append("…")
            break
    text = _CLOSE.sub(r"\1", " ".join(words)).encode("utf-8", "replace").decode()
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_SHOWN = 200
_QUOTES = frozenset("'\"`")
_INTRODUCERS = frozenset({"x", "b", "n"})
_CLOSE = re.compile(r" ?([.@]) ?| (?=[),;])|(?<=\() ")
