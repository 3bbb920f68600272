"""The names in a statement's text that may be tables, views or routines.

A pure function of the text. It must keep true that no name is overlooked: a statement may change what it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdc_core.source.client_text import is_known
from cdc_core.source.sql_tokens import ANSI_QUOTES, Token, TokenKind, tokens

Table = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """Every name in a text that may be a table, view or routine: perhaps too many, never too few.

    names:     `b` in the default database, and each `a.b`.
    databases: unqualified names, which may be databases.
    calls:     names before a parenthesis or after CALL, with what may be their package.
    known:     False where a name contains characters that cannot be decoded.
    """

    names: frozenset[Table] = frozenset()
    databases: frozenset[str] = frozenset()
    calls: frozenset[Table] = frozenset()
    known: bool = True

    def __or__(self, other: Mentions) -> Mentions:
        return Mentions(
            self.names | other.names, self.databases | other.databases, self.calls | other.calls,
            self.known and other.known,
        )  # fmt: skip


NOTHING = Mentions()


def mentions(found: Sequence[Token], database: str) -> Mentions:
    """All names in a text with this default database."""
    names: set[Table] = set()
    alone: set[str] = set()
    calls: set[Table] = set()
    known = True
    for at, token in enumerate(found):
        if not token.names or (at and _is_sign(found[at - 1], ".")):
            continue
        path, end = [token.text], at + 1
        while end + 1 < len(found) and _is_sign(found[end], "."):
            path.append(found[end + 1].text)
            end += 2
        known = known and is_known("".join(path))
        named = {(database, path[0]), *pairwise(path)}
        names |= named
        if len(path) == 1:
            alone.add(token.text)
        if (end < len(found) and _is_sign(found[end], "(")) or (at and found[at - 1].word == "CALL"):
            calls |= named
    return Mentions(frozenset(names), frozenset(alone), frozenset(calls), known)


def mentioned_in(text: str, database: str) -> Mentions:
    """All names in the body of a view, trigger or routine, in any SQL mode."""
    return mentions(tokens(text), database) | mentions(tokens(text, ANSI_QUOTES), database)


def _is_sign(token: Token, sign: str) -> bool:
    return token.kind is TokenKind.SIGN and token.text == sign
