"""Which clauses of ALTER TABLE change rows without row events.

A pure function of the clauses. It must keep true that a clause is harmless only when it is known to be: it changes
neither a value of any row, nor a value's column, nor the key.

ADD COLUMN is harmless only when existing rows show NULL in the new column, as staged rows without the column do.
With a DEFAULT or NOT NULL (or of type TIMESTAMP without NULL, which old servers fill) the server shows a value in
rows that it never logged: an unlogged change, whether done in place, instantly or by copy.
DROP COLUMN is harmless: no value that remains changes; a target that keeps the column keeps its last values.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise

from cdc_core.model.schema import Column
from cdc_core.source.alter_columns import column_changes
from cdc_core.source.modified_columns import modified_column
from cdc_core.source.sql_tokens import Reader, Token, TokenKind

_HARMLESS_HEADS = frozenset({
    "ENABLE", "DISABLE", "ORDER", "FORCE", "ALGORITHM", "LOCK", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARSET",
    "CHECKSUM", "COLLATE", "COMMENT", "COMPRESSION", "CONNECTION", "DATA", "DELAY_KEY_WRITE", "ENCRYPTION",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PASSWORD", "ROW_FORMAT",
    "SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "TABLESPACE", "TRANSACTIONAL", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL", "ENCRYPTED", "ENCRYPTION_KEY_ID", "AUTOEXTEND_SIZE", "PARTITION", "REMOVE", "REORGANIZE",
    "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "WITHOUT", "WITH", "DEFAULT", "CHARACTER", "INDEX",
    "START", "IETF_QUOTES", "SEQUENCE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "STORAGE",
})  # fmt: skip
_KEY_HEADS = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "PARTITION"})
"""Reserved by both servers, so that a column with such a name is quoted."""


def unlogged_by_alter(
    read: Reader, database: str
) -> tuple[str, tuple[tuple[str, str], ...] | None, tuple[Column, ...]]:
    """Why rows change without row events ("" if they do not); other tables that the statement names, None where they
    are unknown; and the columns that the clauses for the reason define again, if all of them do just that and it is
    certain how: then rows change only if values of these columns do (modified_columns)."""
    reasons: list[str] = []
    modified: list[Column | None] = []
    others: list[tuple[str, str] | None] = []
    added = {name.lower() for name in column_changes(Reader(read.found[read.at :])).added}
    ordered = False
    for clause in read.clauses():
        part = Reader(clause)
        ordered = part.peek().word == "ORDER" or (ordered and _is_order(clause))
        reason = "" if ordered else _clause(part, database, others, added)
        if reason:
            reasons.append(reason)
            again = Reader(clause)
            known = not ordered and again.take_any("MODIFY", "CHANGE")
            modified.append(modified_column(again) if known else None)
    named = tuple(one for one in others if one is not None)
    certain = tuple(one for one in modified if one is not None)
    why = "; ".join(dict.fromkeys(reasons))
    return why, named if len(named) == len(others) else None, certain if len(certain) == len(modified) else ()


def _is_order(clause: Sequence[Token]) -> bool:
    """Whether a part after a comma continues ORDER BY: a column, perhaps with its table, and a direction."""
    path = clause[:-1] if clause and clause[-1].word in ("ASC", "DESC") else clause
    return bool(path) and all(token.names != (at % 2 == 1) for at, token in enumerate(path))


def _clause(read: Reader, database: str, others: list[tuple[str, str] | None], added: Container[str]) -> str:
    """added: the columns, in small letters, that the statement adds."""
    if read.done:
        return ""
    head = read.next().word
    if head == "ADD":
        return _add(read)
    if head == "DROP":
        return _drop(read)
    if head in ("MODIFY", "CHANGE"):
        return f"{head} may convert or rename values"
    if head == "RENAME":
        if read.take_any("INDEX", "KEY"):
            return ""
        if read.take("COLUMN"):
            return "a column was renamed"
        read.take_any("TO", "AS") or read.take_sign("=")
        others.append(read.table(database))
        return "rows now belong to a table of another name"
    if head == "ALTER":
        # Defaults, visibility, indexes, checks. Only the default of a new column shows in rows that exist (MariaDB).
        read.take("COLUMN")
        read.take("IF", "EXISTS")
        name = read.next().text
        new = name.lower() in added and read.take("SET", "DEFAULT")
        return f"the column {name} was added with a DEFAULT that existing rows show" if new else ""
    if head in ("ENGINE", "TYPE") or head in _HARMLESS_HEADS:
        return "the engine BLACKHOLE drops all rows" if _to_blackhole(read) else ""
    if head == "EXCHANGE":
        while not read.done and not read.take("WITH", "TABLE"):
            read.next()
        others.append(read.table(database))
        return "EXCHANGE PARTITION swapped rows"
    if head == "CONVERT":
        if read.take("TO"):
            return "CONVERT TO CHARACTER SET may change texts"
        while not read.done and read.peek().word not in ("TO", "TABLE"):
            read.next()
        read.next()
        read.take("TABLE")
        others.append(read.table(database))
        return "CONVERT moved a partition's rows"
    if head in ("TRUNCATE", "DISCARD", "IMPORT"):
        return f"{head} changed whole partitions or tablespaces"
    if head == "REPAIR":
        return "REPAIR drops rows that it cannot read"
    return f"a clause that Lockstep does not know: {head or read.peek().text}"


def _to_blackhole(read: Reader) -> bool:
    """Options need no commas, so the engine may follow another option; `read` is after the first word."""
    read.at -= 1
    while not read.done:
        if read.take_any("ENGINE", "TYPE"):
            read.take_sign("=")
            if read.peek().text.upper() == "BLACKHOLE":
                return True
        else:
            read.next()
    return False


def _add(read: Reader) -> str:
    if read.take("SYSTEM", "VERSIONING") or read.take("PERIOD", "FOR", "SYSTEM_TIME"):
        return "system versioning was added"
    if read.take("PERIOD", "FOR"):
        return "a period was added, whose columns may have lost NULL to a zero date"
    read.take("COLUMN")
    read.take("IF", "NOT", "EXISTS")
    if read.take_sign("("):
        body = Reader(_inside(read))
        return "; ".join(dict.fromkeys(filter(None, (_added(Reader(part)) for part in body.clauses()))))
    return _added(read)


def _is_vector_key(read: Reader) -> bool:
    """VECTOR is not reserved: it begins a key only before INDEX or KEY, which are, and else names a column.

    `ADD VECTOR (c)` and `ADD VECTOR name (c)` are keys too; as columns they have neither NOT NULL nor DEFAULT.
    """
    return read.peek().word == "VECTOR" and read.peek(1).word in ("INDEX", "KEY")


def _inside(read: Reader) -> list[Token]:
    depth, found = 1, []
    while not read.done:
        token = read.next()
        if token.kind is TokenKind.SIGN:
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0:
                break
        found.append(token)
    return found


def _added(read: Reader) -> str:
    """A column, a key or a constraint."""
    if read.take("CONSTRAINT"):
        read.take("IF", "NOT", "EXISTS")
        if read.peek().word not in ("PRIMARY", *_KEY_HEADS):
            read.next()
    if read.take("PRIMARY"):
        return "the primary key changed"
    if read.peek().word in _KEY_HEADS or _is_vector_key(read):
        return ""
    name = read.next().text
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
    nullable = "NULL" in words and not any(a == "NOT" and b == "NULL" for a, b in pairwise(words))
    not_null = "NULL" in words and not nullable
    if "AS" in words or "GENERATED" in words:
        return f"the generated column {name} was added"
    if not_null or "AUTO_INCREMENT" in words or type_name == "SERIAL" or "PRIMARY" in words or _plain_key(words):
        return f"the column {name} was added with a value in existing rows"
    if default is not None and default.word != "NULL":
        return f"the column {name} was added with a DEFAULT that existing rows show"
    if type_name == "TIMESTAMP" and not nullable:
        return f"the column {name} of type TIMESTAMP was added without NULL"
    return ""


def _plain_key(words: list[str]) -> bool:
    """`KEY` alone makes a column the primary key; `UNIQUE KEY` does not."""
    return any(word == "KEY" and before != "UNIQUE" for before, word in pairwise(["", *words]))


def _drop(read: Reader) -> str:
    if read.take("PRIMARY"):
        return "the primary key changed"
    if read.take_any("INDEX", "KEY", "CONSTRAINT"):
        read.take("IF", "EXISTS")
        return "the primary key changed" if read.peek().text.upper() == "PRIMARY" else ""
    if read.take("PARTITION"):
        return "DROP PARTITION removed rows"
    if read.take("SYSTEM", "VERSIONING"):
        return "system versioning was dropped"
    return ""
