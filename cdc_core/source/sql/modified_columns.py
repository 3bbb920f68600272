"""Whether MODIFY and CHANGE leave every value of a column as it is.

Pure functions of a clause and of the column's definition before it. It must keep true that a clause is said to keep
values only when that is certain. A value has neither a collation nor a place among the columns.
"""

from __future__ import annotations

from dataclasses import replace

from cdc_core.errors import Refused
from cdc_core.model.collations import spell_out_utf8
from cdc_core.model.schema import TEXT_BASES, Column, parse_column_type
from cdc_core.source.sql.sql_tokens import Reader, TokenKind

STRICT = 3 << 21
"""In sql_mode STRICT_TRANS_TABLES and STRICT_ALL_TABLES: under each, ALTER TABLE changes no value to make it fit."""
_NAMED = TEXT_BASES | {"enum", "set"}
_ALONE = frozenset({"SIGNED", "INVISIBLE", "VISIBLE", "FIRST"})
_BEFORE_A_WORD = frozenset({"COMMENT", "COLLATE", "AFTER", "COLUMN_FORMAT", "STORAGE"})


def modified_column(read: Reader) -> Column | None:
    """What the rest of a MODIFY or CHANGE makes of a column that keeps its name; None where that is not certain. The
    character set of a text is "" where the clause does not name it."""
    change = read.found[read.at - 1].word == "CHANGE"
    read.take("COLUMN")
    read.take("IF", "EXISTS")
    name = read.next()
    if not name.names or (change and read.next().text.lower() != name.text.lower()):
        return None
    base, more = read.next().word, ""
    arguments = _arguments(read) if read.take_sign("(") else ""
    if arguments is None:
        return None
    nullable, charset = base != "TIMESTAMP", ""
    while not read.done:
        if read.take("NOT", "NULL"):
            nullable = False
        elif read.take("NULL"):
            nullable = True
        elif word := read.take_any("UNSIGNED", "ZEROFILL"):
            more += " " + word
        elif read.take("CHARACTER", "SET") or read.take("CHARSET"):
            charset = read.next().text.lower()
        elif read.take("DEFAULT") or read.take("ON", "UPDATE"):
            _skip_value(read)
        elif read.take_any(*_BEFORE_A_WORD):
            read.next()
        elif not read.take_any(*_ALONE):
            return None
    try:
        kind = parse_column_type(f"{base.lower()}({arguments}){more}" if arguments else base.lower() + more)
    except (Refused, ValueError):
        return None
    return Column(name.text, replace(kind, charset=charset), nullable)


def _arguments(read: Reader) -> str | None:
    """What is in the parentheses after a type, as INFORMATION_SCHEMA writes it; None for what it writes otherwise."""
    arguments = []
    while not read.take_sign(")"):
        token = read.next()
        if token.kind is TokenKind.STRING and not {"'", "\\"} & set(token.text):
            arguments.append(f"'{token.text}'")
        elif token.kind is TokenKind.NUMBER or token.text == ",":
            arguments.append(token.text)
        else:
            return None
    return "".join(arguments)


def _skip_value(read: Reader) -> None:
    """A literal with its sign, or an expression in parentheses, or a function."""
    read.take_sign("-") or read.take_sign("+")
    depth = int(read.next().text == "(" or read.take_sign("("))
    while depth and not read.done:
        token = read.next()
        if token.kind is TokenKind.SIGN:
            depth += (token.text == "(") - (token.text == ")")


def keeps_values(old: Column, new: Column, *, strict: bool) -> bool:
    """Whether a column's stored values are the same under a new definition.

    new: of `modified_column`. strict: the server would have refused the statement if some text did not fit into the new
    character set.
    """
    if old.generated or (old.nullable and not new.nullable):
        return False
    was, now = old.type, new.type
    same = spell_out_utf8(was.charset) == spell_out_utf8(now.charset)
    if was.base in _NAMED and not same and (now.charset or not strict):
        return False
    if was.base == now.base and was.base in ("varchar", "varbinary"):
        return (was.length or 0) <= (now.length or 0)
    if was.base == now.base and was.base in ("enum", "set"):
        return was.labels == now.labels[: len(was.labels)]
    return replace(was, charset="", collation="") == replace(now, charset="")
