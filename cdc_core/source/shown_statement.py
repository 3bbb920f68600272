"""A statement of the log as messages and notes show it: without its values.

It must keep true that no value of a row and no password is shown, in whatever way a server parses the text.
"""

from __future__ import annotations

import re

from cdc_core.source.client_text import SWE7, charset_of, decode, hides_backquotes
from cdc_core.source.sql_tokens import MARIADB_CODE, Token, TokenKind, tokens
from cdc_core.source.statements import Action, Statement


def shown(statement: Statement, sql: bytes, *, client_collation: int = 0, sql_mode: int | None = 0) -> str:
    """A statement on one line, for messages and notes, without its values.

    These texts go to manifests, the meta database and logs, which must not contain masked columns and passwords. DML
    keeps its verb and tables. Other statements keep keywords, names and punctuation, but not strings, numbers or
    comments. If the servers disagree about where the strings of a text begin, only the verb is kept.
    """
    if statement.action is Action.DATA:
        names = "" if not statement.tables else f" {', '.join(f'{d}.{t}' for d, t in statement.tables)}"
        return f"{statement.verb}{names} …"
    words: list[str] = []
    length = 0
    readings = _readings(sql, client_collation, sql_mode or 0)
    if any(reading != readings[0] for reading in readings[1:]):
        return f"{statement.verb} …"
    for token in readings[0]:
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


def _readings(sql: bytes, client_collation: int, sql_mode: int) -> list[list[Token]]:
    """The tokens of a statement in each way in which a server may parse it (see classify)."""
    swe7 = charset_of(client_collation) == SWE7
    text = decode(sql, client_collation)
    texts = [text]
    if hides_backquotes(client_collation) and not text.isascii():
        texts.append(decode(sql, client_collation, quotes_by_byte=True))
    codes = (True, False) if MARIADB_CODE in text else (True,)
    return [tokens(one, sql_mode, swe7=swe7, mariadb_code=code) for one in texts for code in codes]


_SHOWN = 200
_QUOTES = frozenset("'\"`")
_INTRODUCERS = frozenset({"x", "b", "n"})
_CLOSE = re.compile(r" ?([.@]) ?| (?=[),;])|(?<=\() ")
