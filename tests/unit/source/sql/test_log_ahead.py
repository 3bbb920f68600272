"""What was read ahead in the log, and what of it is kept for who begins again."""

from __future__ import annotations

import json

import pytest

from cdc_core.binlog.event_headers import HEADER_SIZE, Event, EventType, Header
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, ColumnType
from cdc_core.source.sql.alter_clauses import AlterClauses
from cdc_core.source.sql.log_ahead import KEPT_BYTES, LaterStatements, LogAhead, Statements
from cdc_core.source.sql.statement_classes import Action, Statement

BEGIN = Position(0, "binlog.000001", 4)
BODY = b"CREATE VIEW v AS SELECT * FROM t WHERE email = 'c4n4ry'"
LENGTH = HEADER_SIZE + len(BODY)


def log(count: int, read: list[int]) -> Statements:
    for number in range(count):
        event = Event(Header(0, EventType.QUERY, 1, LENGTH, 0, 0), BODY, BEGIN.file, BEGIN.offset + number * LENGTH)
        read.append(number)
        yield event, Position(0, BEGIN.file, event.start + LENGTH)


def altering(verb: str) -> Statement:
    column = Column("e", ColumnType("enum", labels=("a",)))
    columns = AlterClauses(added=["e"], modified=[None, column], others=[None, ("shop", "u")])
    names = frozenset({("shop", "t"), ("shop", "ü")})
    return Statement(Action.DEFINITION, verb, tables=(("shop", "t"),), columns=columns, names=names, modified=(column,))


@pytest.mark.parametrize("long", [False, True])
def test_what_was_read_ahead_is_kept_without_its_texts_unless_it_is_longer_than_a_database_takes(long: bool) -> None:
    statement, kept, read = altering("x" * (KEPT_BYTES // 3 if long else 9)), [""], list[int]()

    def found() -> list[list[Statement]]:
        ahead = LogAhead(lambda after: log(3 if after == BEGIN else 0, read), kept[-1], kept.append)
        looking = [LaterStatements(ahead, select) for select in (lambda event: statement, lambda event: None)]
        return [list(each.of(BEGIN)) for each in looking]

    assert found() == found() == [[statement] * 3, []]
    assert read == [0, 1, 2] * (2 if long else 1)
    assert len(kept) == (1 if long else len(kept))
    assert all(len(text) <= KEPT_BYTES and "c4n4ry" not in text for text in kept)


@pytest.mark.parametrize("known", ["[]", "[1", json.dumps([BEGIN.to_json(), BEGIN.to_json(), []]), '{"begin": {}}'])
def test_what_another_version_has_kept_is_read_again(known: str) -> None:
    ahead = LogAhead(lambda after: log(1, []), known, lambda text: None)
    assert len(LaterStatements(ahead, lambda event: altering("ALTER TABLE")).of(BEGIN)) == 1


def test_statements_with_names_that_are_no_utf_8_are_not_kept() -> None:
    kept: list[str] = []
    ahead = LogAhead(lambda after: log(1, []), "", kept.append)
    assert LaterStatements(ahead, lambda event: altering("\udcff")).of(BEGIN)
    assert kept == []
