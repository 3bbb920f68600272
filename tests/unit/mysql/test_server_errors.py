"""Every error number of both servers, at every place that a server's answer reaches, is one of ours by its class."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from cdc_core.cli import app
from cdc_core.errors import LockstepError, RetryLater
from cdc_core.meta.database import Database
from cdc_core.mysql import connections, server_errors
from cdc_core.mysql.connections import answers, connect, parse_url
from cdc_core.mysql.server_errors import RETRIED, ErrorKind, kind_of
from cdc_core.operations.check.findings import Findings
from cdc_core.results.reading_faults import translated as of_results
from cdc_core.source.host.server_facts import query
from cdc_core.source.host.source_faults import dump_error
from cdc_core.targets.reading.target_faults import translated as of_target

CATALOGUES = (*range(1, 6000, 7), *range(10_000, 16_000, 7))
"""More than both servers', and what a later version may add: all of what no table names is treated alike."""
NEAR = {number + by for kind in ErrorKind for number in kind.value for by in (-1, 0, 1)}
NUMBERS = sorted(number for number in {*CATALOGUES, *NEAR} if 0 < number < 1 << 16)
WHERE = "here"


def error_of(number: int) -> pymysql.err.MySQLError:
    """As PyMySQL raises it."""
    with pytest.raises(pymysql.err.MySQLError) as caught:
        pymysql.err.raise_mysql_exception(b"\xff" + struct.pack("<H", number) + b"#HY000the server's own words")
    return caught.value


ERRORS = [error_of(number) for number in NUMBERS]


class Refusing:
    """A connection whose server answers each statement with an error."""

    user, host, port = "reader", "db", 3306

    def __init__(self, error: pymysql.err.MySQLError) -> None:
        self._error = error

    def cursor(self) -> Any:
        raise self._error

    def ping(self, reconnect: bool) -> None:
        raise self._error


def raised(work: Callable[[], Any]) -> LockstepError:
    with pytest.raises(LockstepError) as caught:
        work()
    return caught.value


def at_connecting(error: pymysql.err.MySQLError, monkeypatch: pytest.MonkeyPatch) -> LockstepError:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(connections, "open_connection", refuse)
    return raised(lambda: connect(parse_url("mysql://u:p@h", where=WHERE), where=WHERE))


def at_a_question(error: pymysql.err.MySQLError) -> LockstepError:
    return raised(lambda: answers(WHERE)(query)(Refusing(error), "SELECT 1"))


def at_a_check(error: pymysql.err.MySQLError) -> LockstepError:
    findings = Findings()
    findings.attempt("source", lambda: query(Refusing(error), "SELECT 1"))
    return findings.made[0].error


def at_meta(error: pymysql.err.MySQLError) -> LockstepError:
    database = object.__new__(Database)
    database.__dict__ |= {"name": "meta", "is_sqlite": False, "_postgres": False, "_secrets": ()}
    found = database._translated(DBAPIError(None, None, error), write=False)
    assert isinstance(found, LockstepError)
    return found


PLACES: dict[str, Callable[[pymysql.err.MySQLError], LockstepError]] = {
    "a question to a source": at_a_question,
    "the log": lambda error: dump_error(error.args[0], "no", WHERE),
    "rows that are read": lambda error: of_results(error, where=WHERE),
    "a target": lambda error: of_target(error, where=WHERE),
    "check": at_a_check,
    "meta": at_meta,
    "the command line": lambda error: app._unexpected(error),
}
READ_AGAIN = frozenset({ErrorKind.ALTERED, ErrorKind.GROUP})
"""Where rows are read or written: the next attempt reads the definition again."""


@pytest.mark.parametrize("place", PLACES)
def test_no_number_of_a_server_is_a_defect_and_only_what_passes_is_tried_again(place: str) -> None:
    again = RETRIED | (READ_AGAIN if place in ("rows that are read", "a target") else frozenset())
    wrong = []
    for error in ERRORS:
        found, number = PLACES[place](error), error.args[0]
        if found.exit_code == 70 or isinstance(found, RetryLater) is not (kind_of(error) in again):
            wrong.append((number, found.code))
        if place != "the log" and kind_of(error) is ErrorKind.UNKNOWN:
            assert f"({number})" in found.what or place == "meta", found.what
    assert wrong == []


def test_no_number_of_a_server_that_lets_nobody_in_is_tried_again_unless_it_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in ERRORS:
        found = at_connecting(error, monkeypatch)
        assert found.exit_code in (3, 75)
        assert isinstance(found, RetryLater) is (kind_of(error) in RETRIED), error


def test_each_number_of_the_table_has_one_class() -> None:
    numbers = [number for kind in ErrorKind for number in kind.value]
    assert len(numbers) == len(set(numbers))
    assert set(server_errors._REMEDIES) <= set(numbers)
    assert set(ErrorKind.STATE.value) <= set(server_errors._REMEDIES)
