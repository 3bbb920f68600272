"""A statement of the log as tokens: enough to know what it is and which tables it names, no more.

It may assume a statement that the server has parsed before. It must keep true that comments, strings and quoted
names never pass for keywords, and that the contents of executable comments (`/*!50100 ... */`, `/*M! ... */`) are
read as statement text, which is how the server may have read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from cdc_core.source.sql.client_text import is_known

ANSI_QUOTES = 1 << 2
NO_BACKSLASH_ESCAPES = 1 << 20
MARIADB_CODE = "/*M!"
"""Begins a comment that MariaDB executes. To MySQL it is a comment."""


class TokenKind(Enum):
    WORD = "word"
    """A keyword or an unquoted name."""
    NAME = "name"
    """A quoted name, its quotes taken off."""
    STRING = "string"
    NUMBER = "number"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str

    @property
    def word(self) -> str:
        """Upper-case keyword; "" for anything that cannot be one."""
        return self.text.upper() if self.kind is TokenKind.WORD and self.text.isascii() else ""

    @property
    def names(self) -> bool:
        """Whether it can be a name."""
        return self.kind in (TokenKind.WORD, TokenKind.NAME)


_PATTERN = re.compile(
    r"""
      (?P<space>[\x00-\x20]+|\#[^\n]*|--(?=[\x00-\x20]|\Z)[^\n]*)
    | (?P<code>/\*M?!\d{0,6})
    | (?P<comment>/\*.*?\*/)
    | (?P<end>\*/)
    | (?P<backtick>`(?:[^`]|``)*`)
    | (?P<double>"(?:[^"\\]|""|\\.)*")
    | (?P<single>[nN]?'(?:[^'\\]|''|\\.)*')
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![0-9A-Za-z_$\u0080-\U0010ffff]))
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@cache
def _pattern(*, ansi_quotes: bool, plain_backslash: bool) -> re.Pattern[str]:
    """plain_backslash: in a string it is an ordinary character."""
    text = _PATTERN.pattern
    if ansi_quotes:
        text = text.replace(r'"(?:[^"\\]|""|\\.)*"', '"(?:[^"]|"")*"')
    if plain_backslash:
        text = text.replace(r"|\\.)", ")").replace(r"\\]", "]")
    return re.compile(text, re.VERBOSE | re.DOTALL)


def tokens(sql: str, sql_mode: int = 0, *, mariadb_code: bool = True) -> list[Token]:
    """All tokens but comments and white space. mariadb_code: `/*M! ... */` is read as statement text."""
    return [token for token, _ in placed_tokens(sql, sql_mode, mariadb_code=mariadb_code)]


def placed_tokens(sql: str, sql_mode: int = 0, *, mariadb_code: bool = True) -> list[tuple[Token, tuple[int, int]]]:
    """The tokens, each with the places where it begins and ends in the text."""
    pattern = _pattern(ansi_quotes=bool(sql_mode & ANSI_QUOTES), plain_backslash=bool(sql_mode & NO_BACKSLASH_ESCAPES))
    if not mariadb_code:
        sql = sql.replace(MARIADB_CODE, "/*M ")
    placed: list[tuple[Token, tuple[int, int]]] = []
    for match in pattern.finditer(sql):
        group, text = match.lastgroup, match[0]
        if group in ("space", "comment", "code", "end"):
            continue
        if group == "backtick":
            token = Token(TokenKind.NAME, text[1:-1].replace("``", "`"))
        elif group == "double" and sql_mode & ANSI_QUOTES:
            token = Token(TokenKind.NAME, text[1:-1].replace('""', '"'))
        elif group in ("double", "single"):
            token = Token(TokenKind.STRING, text.lstrip("nN")[1:-1])
        elif group == "number":
            token = Token(TokenKind.NUMBER, text)
        elif group == "word":
            token = Token(TokenKind.WORD, text)
        else:
            token = Token(TokenKind.SIGN, text)
        placed.append((token, match.span()))
    return placed


class Reader:
    """Walks over tokens; every read past the end gives an empty sign."""

    END = Token(TokenKind.SIGN, "")

    def __init__(self, found: list[Token]) -> None:
        self.found = found
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        return self.found[self.at + ahead] if self.at + ahead < len(self.found) else self.END

    @property
    def done(self) -> bool:
        return self.at >= len(self.found)

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def take(self, *words: str) -> bool:
        """Whether these keywords come next; if so they are passed."""
        if all(self.peek(i).word == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def take_any(self, *words: str) -> str:
        """The next keyword if it is one of these, passed; else ""."""
        word = self.peek().word
        if word and word in words:
            self.at += 1
            return word
        return ""

    def take_sign(self, sign: str) -> bool:
        token = self.peek()
        if token.kind is TokenKind.SIGN and token.text == sign:
            self.at += 1
            return True
        return False

    def table(self, database: str) -> tuple[str, str] | None:
        """A table name, qualified or in `database`; None where no name comes next, or an undecodable one.

        `.5x` and `a.5x`: a name after a dot may begin with digits, which makes it a number or a word here.
        """
        if not self.peek().names:
            return None
        first = self.next().text
        name = (first, self.next().text) if self.take_sign(".") else (database, first)
        return name if is_known("".join(name)) else None

    def clauses(self) -> list[list[Token]]:
        """What is left, cut at the commas that stand in no parentheses."""
        cut: list[list[Token]] = [[]]
        depth = 0
        while not self.done:
            token = self.next()
            if token.kind is TokenKind.SIGN:
                depth += (token.text == "(") - (token.text == ")")
                if token.text == "," and depth == 0:
                    cut.append([])
                    continue
            cut[-1].append(token)
        return cut
