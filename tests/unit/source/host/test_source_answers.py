"""What is asked of a server that answers nonsense: an error of ours, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.errors import LockstepError
from cdc_core.model.position import Position
from cdc_core.source.host import server_facts
from tests.lab.refusals import raises

values = st.one_of(
    st.none(), st.text(max_size=6), st.integers(), st.binary(max_size=4), st.sampled_from(["9.7.4", "ON"])
)
answers = st.lists(st.lists(values, max_size=3).map(tuple), max_size=3).map(tuple)

QUESTIONS: dict[str, Callable[[Any], object]] = {
    "facts": server_facts.facts,
    "now_us": server_facts.now_us,
    "log_status": server_facts.log_status,
    "end_position": lambda connection: server_facts.end_position(connection, 0),
    "binlog_files": server_facts.binlog_files,
    "gtid_executed": server_facts.gtid_executed,
    "gtid_purged": server_facts.gtid_purged,
    "logged_gtids": lambda connection: server_facts.logged_gtids(connection, mariadb=False),
    "gtid_at": lambda connection: server_facts.gtid_at(connection, Position(0, "b.000001", 4), mariadb=True),
}
SENSIBLE: dict[str, tuple[tuple[object, ...], ...]] = {
    "SHOW GLOBAL VARIABLES": (("server_id", "1"), ("server_uuid", "u"), ("log_bin", "ON")),
    "SELECT VERSION()": (("9.7.4",),),
    "SHOW GRANTS": (("GRANT ALL PRIVILEGES ON *.* TO `a`@`%`",),),
    "SHOW BINARY LOGS": (("b.000001", 4),),
    "SHOW BINARY LOG STATUS": (("b.000001", 4, "", "", ""),),
    "SELECT": ((1,),),
    "SHOW": (),
}


class Cursor:
    """A cursor of a connection whose server answers as it is told to."""

    def __init__(self, answer: Callable[[str], tuple[tuple[object, ...], ...]]) -> None:
        self._answer = answer

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cursor(self) -> Cursor:
        return self

    def execute(self, sql: str, _: object = None) -> None:
        self._rows = self._answer(sql)

    def fetchall(self) -> tuple[tuple[object, ...], ...]:
        return self._rows


def sensible(sql: str) -> tuple[tuple[object, ...], ...]:
    return next(rows for begin, rows in SENSIBLE.items() if sql.startswith(begin))


def test_a_server_that_answers_sensibly_is_known() -> None:
    facts = server_facts.facts(Cursor(sensible))
    assert (facts.version, facts.identity, facts.server_id, facts.log_bin) == ("9.7.4", "u", 1, True)


@pytest.mark.parametrize("nonsense", SENSIBLE)
@pytest.mark.parametrize("rows", [(), ((),), ((None,),), (("x",),), ((None, None),)])
def test_one_answer_that_is_nonsense_is_no_error_that_is_not_ours(
    nonsense: str, rows: tuple[tuple[object, ...], ...]
) -> None:
    def answer(sql: str) -> tuple[tuple[object, ...], ...]:
        return rows if sql.startswith(nonsense) else sensible(sql)

    with suppress(LockstepError):
        assert server_facts.facts(Cursor(answer)).version


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(QUESTIONS)), st.lists(answers, min_size=1, max_size=12))
def test_no_answer_ends_in_an_error_that_is_not_ours(question: str, told: list[tuple[tuple[object, ...], ...]]) -> None:
    turn = iter(range(1 << 30))
    connection = Cursor(lambda _: told[next(turn) % len(told)])
    with suppress(LockstepError):
        QUESTIONS[question](connection)


def test_a_server_without_a_version_is_refused() -> None:
    with raises(LockstepError, "connection.answer", match="answer does not match the question"):
        server_facts.facts(Cursor(lambda sql: () if "VERSION" in sql else sensible(sql)))
