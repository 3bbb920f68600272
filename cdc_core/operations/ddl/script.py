"""A file of ALTER TABLE statements about logical tables, and the statements that take them back.

    -- migrate:up
    ALTER TABLE shop.orders ADD COLUMN note VARCHAR(200) NULL;
    -- migrate:down
    ALTER TABLE shop.orders DROP COLUMN note;

The sections are marked as dbmate does; without a mark, everything is `up`. What a statement says after the table's name
goes to the server as it is. Refused is whatever removes rows, renames the table or changes its key; and ALGORITHM and
LOCK, which Lockstep asserts itself (foretell.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cdc_core.errors import UsageError
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.mysql.connections import quote
from cdc_core.source.sql.alter_clauses import AlterClauses, alter_clauses
from cdc_core.source.sql.sql_tokens import Reader, Token, TokenKind, placed_tokens

_MARK = re.compile(r"^[ \t]*--[ \t]*migrate:(up|down)\b.*$", re.MULTILINE)
_REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("DROP", "PRIMARY"), "it changes the key, by which Lockstep finds the rows"),
    (("ADD", "PRIMARY"), "it changes the key, by which Lockstep finds the rows"),
    (("FOREIGN", "KEY"), "rows of shards arrive in no order that a foreign key could check"),
    (("DROP", "PARTITION"), "it removes rows"),
    (("TRUNCATE", "PARTITION"), "it removes rows"),
    (("EXCHANGE", "PARTITION"), "it removes rows"),
    (("CONVERT", "PARTITION"), "it removes rows"),
    (("CONVERT", "TABLE"), "it adds rows"),
    (("DISCARD",), "it removes rows"),
    (("IMPORT",), "it removes rows"),
)


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """logical: the table. clauses: what stands after its name. columns: by name, what it drops and adds. line: in the
    file."""

    logical: str
    clauses: str
    columns: AlterClauses
    line: int = field(compare=False)

    def on(self, database: str, table: str, *modifiers: str) -> str:
        """The SQL for a physical table. Modifiers come first: there, MySQL takes them before clauses about
        partitions, too."""
        return f"ALTER TABLE {quote(database, table)} {', '.join((*modifiers, self.clauses))}"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    up: tuple[ScriptStatement, ...]
    down: tuple[ScriptStatement, ...] = ()

    def statements(self, direction: str) -> tuple[ScriptStatement, ...]:
        return self.up if direction == "up" else self.down


def parse(text: str, name: str) -> Script:
    """Raises UsageError (ddl.script) with the line."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return Script(name, tuple(_statements(text, 1, name)))
    statements: dict[str, tuple[ScriptStatement, ...]] = {}
    for number, mark in enumerate(marks):
        direction = mark[1]
        line = text.count("\n", 0, mark.start()) + 1
        if direction in statements:
            raise _bad(f"There is a second section migrate:{direction}.", f"{name}:{line}", "write each section once")
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        statements[direction] = tuple(_statements(text[mark.end() : end], line, name))
    if placed_tokens(text[: marks[0].start()]):
        raise _bad("There is a statement before the first section.", f"{name}:1", "move it below `-- migrate:up`")
    return Script(name, statements.get("up", ()), statements.get("down", ()))


def _statements(text: str, first_line: int, name: str) -> Iterator[ScriptStatement]:
    tokens: list[tuple[Token, tuple[int, int]]] = []
    for placed in [*placed_tokens(text), (Token(TokenKind.SIGN, ";"), (len(text), len(text)))]:
        token = placed[0]
        if token.kind is not TokenKind.SIGN or token.text != ";":
            tokens.append(placed)
            continue
        if tokens:
            line = first_line + text.count("\n", 0, tokens[0][1][0])
            yield _statement(tokens, text, line, f"{name}:{line}")
        tokens = []


def _statement(tokens: Sequence[tuple[Token, tuple[int, int]]], text: str, line: int, where: str) -> ScriptStatement:
    read = Reader([token for token, _ in tokens])
    table = read.table("") if read.take("ALTER", "TABLE") and read.peek().word != "IF" else None
    if table is None or read.done:
        raise _bad(
            f"`{text[tokens[0][1][0] : tokens[-1][1][1]][:80]}` is not a change of one table.",
            where,
            "write `ALTER TABLE name ...`, where name is the logical table of the pipeline; indexes, too, are added "
            "and dropped by ALTER TABLE, and tables are created by `lockstep target create`",
        )
    rest = read.found[read.at :]
    clauses = text[tokens[read.at][1][0] : tokens[-1][1][1]]
    if any("/*" in text[before[1][1] : after[1][0]] for before, after in pairwise(tokens)):
        raise _bad("There is a comment inside the statement.", where, "write comments on lines of their own, above it")
    words = [token.word for token in rest if token.word]
    for refused, why in _REFUSED:
        if any(tuple(words[at : at + len(refused)]) == refused for at in range(len(words))):
            raise _bad(f"`{' '.join(refused)}` is not for all shards: {why}.", where, "leave this clause out")
    columns = alter_clauses(Reader(rest), "")
    if columns.moved:
        raise _bad("The statement renames the table.", where, "leave RENAME out; the target's rules name its tables")
    for column in (*columns.dropped, *columns.perhaps_dropped):
        if column.lower() == VERSION_COLUMN:
            raise _bad(f"`{column}` is Lockstep's own column.", where, "leave this clause out")
    for clause in Reader(rest).clauses():
        drops_index = [token.word for token in clause[:2]] in (["DROP", "INDEX"], ["DROP", "KEY"])
        if drops_index and clause[-1].text.upper() == "PRIMARY":
            what = "`DROP INDEX PRIMARY` is not for all shards: it changes the key."
            raise _bad(what, where, "leave this clause out")
        if clause and clause[0].word in ("ALGORITHM", "LOCK"):
            raise _bad(
                f"`{clause[0].word}` is not for a file: Lockstep asserts the least that the server takes, and never a "
                "copy, or a lock that keeps others from writing.",
                where,
                "leave this clause out",
            )
    return ScriptStatement(".".join(part for part in table if part), clauses, columns, line)


def _bad(what: str, where: str, remedy: str) -> UsageError:
    return UsageError(what, where=where, code="ddl.script", remedy=remedy)
