"""Which columns ALTER TABLE drops and adds, by name, and whether the table leaves its name.

A pure function of the clauses. A column that gets another name is dropped under the old one and added under the new.
It must keep true that no column that is dropped or added is missing from the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_core.source.sql_tokens import Reader, TokenKind

_NO_COLUMN = frozenset({
    "PRIMARY", "INDEX", "KEY", "FOREIGN", "CHECK", "CONSTRAINT", "PARTITION", "UNIQUE", "FULLTEXT", "SPATIAL",
})  # fmt: skip
"""Reserved words."""
_NO_COLUMN_BEFORE = {"SYSTEM": "VERSIONING", "PERIOD": "FOR"}
"""Words that name a column unless this word follows."""


@dataclass(slots=True)
class ColumnChanges:
    """dropped: certainly dropped. perhaps_dropped: with IF EXISTS. moved: the table has another name now. renamed:
    (old, new) of those that are dropped and added with the same values."""

    dropped: list[str] = field(default_factory=list)
    perhaps_dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    moved: bool = False
    renamed: list[tuple[str, str]] = field(default_factory=list)


def column_changes(read: Reader) -> ColumnChanges:
    found = ColumnChanges()
    for clause in read.clauses():
        _clause(Reader(clause), found)
    return found


def _clause(read: Reader, found: ColumnChanges) -> None:
    head = read.next().word
    if head not in ("DROP", "ADD", "CHANGE", "RENAME"):
        return
    if head == "RENAME":
        if read.take("COLUMN"):
            read.take("IF", "EXISTS")
            old = read.next().text
            read.take("TO")
            _rename(old, read.next().text, found)
        else:
            found.moved = found.moved or read.peek().word not in ("INDEX", "KEY")
        return
    column = read.take("COLUMN")
    guarded = read.take("IF", "EXISTS") or read.take("IF", "NOT", "EXISTS")
    if not column and not _names_column(read):
        return
    if head == "ADD" and read.take_sign("("):
        depth, name = 1, True
        while depth and not read.done:
            name = name and _names_column(read)
            token = read.next()
            if name:
                found.added.append(token.text)
            name = False
            if token.kind is TokenKind.SIGN:
                depth += (token.text == "(") - (token.text == ")")
                name = token.text == "," and depth == 1
        return
    name_token = read.next()
    if head == "ADD":
        found.added.append(name_token.text)
    elif head == "DROP":
        (found.perhaps_dropped if guarded else found.dropped).append(name_token.text)
    elif (new := read.next()).text.lower() != name_token.text.lower():
        _rename(name_token.text, new.text, found)


def _rename(old: str, new: str, found: ColumnChanges) -> None:
    found.dropped.append(old)
    found.added.append(new)
    found.renamed.append((old, new))


def _names_column(read: Reader) -> bool:
    word = read.peek().word
    return word not in _NO_COLUMN and read.peek(1).word != _NO_COLUMN_BEFORE.get(word)
