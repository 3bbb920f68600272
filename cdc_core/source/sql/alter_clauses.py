"""What the clauses of ALTER TABLE do: which may change rows without row events, and which columns and names they move.

A pure function of the clauses. A clause is harmless only if it is in the lists here: it changes neither a value of any
row, nor a value's column, nor the key. Every other clause is an unlogged change. It must keep true that no column that
is dropped or added is missing from the answer.

ADD COLUMN is harmless only when existing rows show NULL in the new column, as staged rows without the column do.
With a DEFAULT or NOT NULL (or of type TIMESTAMP without NULL, which old servers fill) the server shows a value in
rows that it never logged: an unlogged change, whether done in place, instantly or by copy.
DROP COLUMN is harmless: no value that remains changes; a target that keeps the column keeps its last values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cdc_core.model.schema import Column
from cdc_core.source.sql.modified_columns import modified_column
from cdc_core.source.sql.sql_tokens import Reader, Token, TokenKind

_HARMLESS_HEADS = frozenset({
    "ENABLE", "DISABLE", "ORDER", "FORCE", "ALGORITHM", "LOCK", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARSET",
    "CHECKSUM", "COLLATE", "COMMENT", "COMPRESSION", "CONNECTION", "DATA", "DELAY_KEY_WRITE", "ENCRYPTION",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PASSWORD", "ROW_FORMAT",
    "SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "TABLESPACE", "TRANSACTIONAL", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL", "ENCRYPTED", "ENCRYPTION_KEY_ID", "AUTOEXTEND_SIZE", "PARTITION", "REMOVE", "REORGANIZE",
    "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "WITHOUT", "WITH", "DEFAULT", "CHARACTER", "INDEX",
    "START", "IETF_QUOTES", "SEQUENCE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "STORAGE", "ENGINE", "TYPE",
})  # fmt: skip
_KEY_HEADS = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "PARTITION"})
"""Reserved by both servers, so that a column with such a name is quoted."""
_KEY_CHANGED = "the primary key changed"


@dataclass(slots=True)
class AlterClauses:
    """What the clauses of one ALTER TABLE do.

    reasons: why rows may change without row events. others: further tables that it names, None for one that cannot be
    read. modified: for each reason the column that the clause just defines again, None where it is not certain how:
    then rows change only if values of these columns do (modified_columns).
    dropped, added: columns; one that gets another name is both, and in `renamed` as (old, new). perhaps_dropped: with
    IF EXISTS. moved: the table has another name now. drops_constraint: perhaps a foreign key.
    """

    reasons: list[str] = field(default_factory=list)
    others: list[tuple[str, str] | None] = field(default_factory=list)
    modified: list[Column | None] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    perhaps_dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    moved: bool = False
    drops_constraint: bool = False

    @property
    def kept_columns(self) -> tuple[Column, ...]:
        """`modified`, if rows change only by these; else empty."""
        return tuple(column for column in self.modified if column is not None) if None not in self.modified else ()

    def rename(self, old: str, new: str) -> None:
        self.dropped.append(old)
        self.added.append(new)
        self.renamed.append((old, new))


def alter_clauses(read: Reader, database: str) -> AlterClauses:
    clauses = AlterClauses()
    defaults: list[str] = []
    ordered = False
    for clause in read.clauses():
        part = Reader(clause)
        ordered = part.peek().word == "ORDER" or (ordered and _is_order(clause))
        if ordered or part.done:
            continue
        column = None
        if part.peek().word in ("MODIFY", "CHANGE"):
            again = Reader(clause)
            again.next()
            column = modified_column(again)
        if reason := _clause(part, database, clauses, defaults):
            clauses.reasons.append(reason)
            clauses.modified.append(column)
    # Defaults change no row; but that of a new column shows in rows that exist (MariaDB).
    for name in {name.lower() for name in clauses.added} & set(defaults):
        clauses.reasons.append(_shown(name))
        clauses.modified.append(None)
    return clauses


def _shown(name: str) -> str:
    return f"existing rows show a value in the new column {name}"


def _is_order(clause: Sequence[Token]) -> bool:
    """Whether a part after a comma continues ORDER BY: a column, perhaps with its table, and a direction."""
    path = clause[:-1] if clause and clause[-1].word in ("ASC", "DESC") else clause
    return bool(path) and all(token.text == "." if at % 2 else token.names for at, token in enumerate(path))


def _clause(read: Reader, database: str, clauses: AlterClauses, defaults: list[str]) -> str:
    """Why it may change rows; "" if it is harmless. defaults: takes the columns, in small letters, that get one."""
    head = read.next().word
    if head == "ADD":
        return "; ".join(dict.fromkeys(filter(None, _add(read, clauses))))
    if head == "DROP":
        return _drop(read, clauses)
    if head == "RENAME" and read.take_any("INDEX", "KEY"):
        return ""
    if head == "CHANGE" or (head == "RENAME" and read.peek().word == "COLUMN"):
        read.take("COLUMN")
        read.take("IF", "EXISTS")
        old = read.next().text
        read.take("TO")
        if (new := read.next().text).lower() != old.lower():
            clauses.rename(old, new)
    elif head == "RENAME":
        read.take_any("TO", "AS") or read.take_sign("=")
        clauses.moved = True
        clauses.others.append(read.table(database))
    elif head in ("EXCHANGE", "CONVERT"):  # a partition and another table, or a character set
        while not read.done and not read.take("TABLE"):
            read.next()
        if not read.done:
            clauses.others.append(read.table(database))
    elif head == "ALTER":
        read.take("COLUMN")
        read.take("IF", "EXISTS")
        name = read.next().text
        if read.take("SET", "DEFAULT"):
            defaults.append(name.lower())
        return ""
    elif head in _HARMLESS_HEADS and not any(token.text.upper() == "BLACKHOLE" for token in read.found):
        return ""
    return f"{head or read.found[0].text} may change rows"


def _add(read: Reader, clauses: AlterClauses) -> Iterator[str]:
    if read.take("SYSTEM", "VERSIONING") or read.take("PERIOD", "FOR"):
        yield "ADD of a period or of system versioning may change rows"
        return
    column = read.take("COLUMN")
    read.take("IF", "NOT", "EXISTS")
    if read.take_sign("("):
        for part in Reader(_inside(read)).clauses():
            yield _added(Reader(part), clauses)
    else:
        yield _added(read, clauses, column=column)


def _is_key(read: Reader) -> bool:
    """VECTOR is not reserved: it begins a key only before INDEX or KEY, which are, and else names a column.

    `ADD VECTOR (c)` and `ADD VECTOR name (c)` are keys too; as columns they have neither NOT NULL nor DEFAULT.
    """
    word = read.peek().word
    return word in _KEY_HEADS or (word == "VECTOR" and read.peek(1).word in ("INDEX", "KEY"))


def _inside(read: Reader) -> list[Token]:
    depth, inside = 1, []
    while not read.done:
        token = read.next()
        if token.kind is TokenKind.SIGN:
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0:
                break
        inside.append(token)
    return inside


def _added(read: Reader, clauses: AlterClauses, *, column: bool = False) -> str:
    """A column, a key or a constraint. column: certainly a column."""
    if not column:
        if read.take("CONSTRAINT"):
            read.take("IF", "NOT", "EXISTS")
            if read.peek().word not in ("PRIMARY", *_KEY_HEADS):
                read.next()
        if read.take("PRIMARY"):
            return _KEY_CHANGED
        if _is_key(read) or (read.peek().word == "PERIOD" and read.peek(1).word == "FOR"):
            return ""
    name = read.next().text
    clauses.added.append(name)
    type_name = read.next().word
    words: list[str] = []
    default: Token | None = None
    depth = 0
    while not read.done:
        token = read.next()
        if token.kind is TokenKind.SIGN:
            depth += (token.text == "(") - (token.text == ")")
        elif depth == 0 and token.word in ("COMMENT", "AFTER", "COLLATE", "REFERENCES"):
            read.next()
        elif depth == 0 and token.word == "SET" and read.peek().word in ("NULL", "DEFAULT"):
            read.next()  # ON DELETE SET NULL
        elif depth == 0 and token.word == "DEFAULT":
            default = read.next()
        elif depth == 0:
            words.append(token.word)
    not_null = any(pair == ("NOT", "NULL") for pair in pairwise(words))
    # `KEY` alone makes a column the primary key; `UNIQUE KEY` does not.
    key = "PRIMARY" in words or any(word == "KEY" and before != "UNIQUE" for before, word in pairwise(["", *words]))
    shown = not_null or key or type_name == "SERIAL" or bool({"AS", "GENERATED", "AUTO_INCREMENT"} & set(words))
    shown = shown or (default is not None and default.word != "NULL")
    shown = shown or (type_name == "TIMESTAMP" and "NULL" not in words)
    return _shown(name) if shown else ""


def _drop(read: Reader, clauses: AlterClauses) -> str:
    column = read.take("COLUMN")
    if not column:
        word, following = read.peek().word, read.peek(1).word
        clauses.drops_constraint = clauses.drops_constraint or word in ("FOREIGN", "CONSTRAINT")
        if word == "PRIMARY":
            return _KEY_CHANGED
        if word in ("INDEX", "KEY", "CONSTRAINT"):
            read.next()
            read.take("IF", "EXISTS")
            return _KEY_CHANGED if read.peek().text.upper() == "PRIMARY" else ""
        if word == "PARTITION" or (word, following) == ("SYSTEM", "VERSIONING"):
            return f"DROP {word} may change rows"
        if word in _KEY_HEADS or (word, following) == ("PERIOD", "FOR"):
            return ""
    guarded = read.take("IF", "EXISTS")
    (clauses.perhaps_dropped if guarded else clauses.dropped).append(read.next().text)
    return ""
