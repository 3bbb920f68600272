"""A statement of the log as tokens: enough to know what it is and which tables it names, no more.

It may assume a statement that the server has parsed before. It must keep true that comments, strings and quoted
names never pass for keywords, and that the contents of executable comments (`/*!50100 ... */`, `/*M! ... */`) are
read as statement text, which is how the server may have read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

ANSI_QUOTES = 1 << 2
NO_BACKSLASH_ESCAPES = 1 << 20

_CODECS = {
    1: "big5", 84: "big5", 13: "cp932", 88: "cp932", 95: "cp932", 96: "cp932", 19: "euc_kr", 85: "euc_kr",
    24: "gb2312", 86: "gb2312", 28: "gbk", 87: "gbk", 248: "gb18030", 249: "gb18030", 250: "gb18030",
    12: "euc_jp", 91: "euc_jp", 97: "euc_jp", 98: "euc_jp",
    5: "cp1252", 8: "cp1252", 15: "cp1252", 31: "cp1252", 47: "cp1252", 48: "cp1252", 49: "cp1252", 94: "cp1252",
}  # fmt: skip
"""Collation ids of client character sets that are not UTF-8 or ASCII-compatible single bytes we need not tell apart."""


class Kind(Enum):
    WORD = "word"
    """A keyword or an unquoted name."""
    NAME = "name"
    """A quoted name, its quotes taken off."""
    STRING = "string"
    NUMBER = "number"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str

    @property
    def word(self) -> str:
        """Upper-case keyword; "" for anything that cannot be one."""
        return self.text.upper() if self.kind is Kind.WORD else ""

    @property
    def names(self) -> bool:
        """Whether it can be a name."""
        return self.kind in (Kind.WORD, Kind.NAME)


_PATTERN = re.compile(
    r"""
      (?P<space>\s+|\#[^\n]*|--(?=[\s\x00-\x1f]|\Z)[^\n]*)
    | (?P<code>/\*M?!\d{0,6})
    | (?P<comment>/\*.*?\*/)
    | (?P<end>\*/)
    | (?P<backtick>`(?:[^`]|``)*`)
    | (?P<double>"(?:[^"\\]|""|\\.)*")
    | (?P<single>[nN]?'(?:[^'\\]|''|\\.)*')
    | (?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w$]))
    | (?P<word>[\w$\u0080-\U0010ffff\udc80-\udcff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_BACKSLASH = re.compile(_PATTERN.pattern.replace(r"|\\.)", ")").replace(r"\\]", "]"), re.VERBOSE | re.DOTALL)
"""The same where a backslash in a string is an ordinary character."""


def decode(sql: bytes, client_collation: int) -> str:
    """The text of a statement; bytes that its character set does not know become surrogates."""
    return sql.decode(_CODECS.get(client_collation, "utf-8"), "surrogateescape")


def tokens(sql: str, sql_mode: int = 0) -> list[Token]:
    """All tokens but comments and white space."""
    pattern = _PLAIN_BACKSLASH if sql_mode & NO_BACKSLASH_ESCAPES else _PATTERN
    found: list[Token] = []
    for match in pattern.finditer(sql):
        group, text = match.lastgroup, match[0]
        if group in ("space", "comment", "code", "end"):
            continue
        if group == "backtick":
            found.append(Token(Kind.NAME, text[1:-1].replace("``", "`")))
        elif group == "double" and sql_mode & ANSI_QUOTES:
            found.append(Token(Kind.NAME, text[1:-1].replace('""', '"')))
        elif group in ("double", "single"):
            found.append(Token(Kind.STRING, text.lstrip("nN")[1:-1]))
        elif group == "number":
            found.append(Token(Kind.NUMBER, text))
        elif group == "word":
            found.append(Token(Kind.WORD, text))
        else:
            found.append(Token(Kind.SIGN, text))
    return found


class Reader:
    """Walks over tokens; every read past the end gives an empty sign."""

    END = Token(Kind.SIGN, "")

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
        if token.kind is Kind.SIGN and token.text == sign:
            self.at += 1
            return True
        return False

    def table(self, database: str) -> tuple[str, str] | None:
        """A table name, qualified or in `database`; None where no name comes next.

        `.5x` and `a.5x`: a name after a dot may begin with digits, which makes it a number or a word here.
        """
        if not self.peek().names:
            return None
        first = self.next().text
        if self.take_sign("."):
            return first, self.next().text
        return database, first

    def clauses(self) -> list[list[Token]]:
        """What is left, cut at the commas that stand in no parentheses."""
        cut: list[list[Token]] = [[]]
        depth = 0
        while not self.done:
            token = self.next()
            if token.kind is Kind.SIGN:
                depth += (token.text == "(") - (token.text == ")")
                if token.text == "," and depth == 0:
                    cut.append([])
                    continue
            cut[-1].append(token)
        return cut
