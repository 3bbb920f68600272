"""Tables without a key through the jobs: merged against a plain count in Python, and on a real target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.history_model import Change
from tests.spark.staged_changes import table_schema
from tests.spark.target_line import TargetLine, target_line

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
KINDS = {
    "w": "varchar(20)", "n": "int", "d": "double", "m": "decimal(9,3)", "b": "bit(9)", "e": "enum('a','b','')",
    "j": "json", "r": "blob", "t": "datetime(3)", "f": "float",
}  # fmt: skip
LOG = table_schema("shop.log", KINDS, [])
ROWS: list[dict[str, Any]] = [
    {},
    *({"w": word} for word in ("", "a", "A", "a ", "ä")),
    *({"d": number} for number in (0.0, -0.0, 0.1, 1e300)),
    {"f": 0.1},
    {"m": Decimal("1.500")}, {"m": Decimal("-0.001")},
    {"b": 257}, {"e": "a"}, {"e": "b"}, {"e": ""},
    {"j": '{"a": 1}'}, {"j": "null"},
    {"r": b""}, {"r": b"\0"},
    {"t": datetime(2024, 2, 29, 1, 2, 3, 4000)},
    {"n": 1, "w": "a"},
]  # fmt: skip
ZERO, ODD = {"t": "0000-00-00 00:00:00.000"}, {"t": "2024-02-31 00:00:00.001"}


def history() -> list[list[Change]]:
    """Three batches: duplicates, updates to the same value, one row a transaction."""
    batches: list[list[Change]] = [[], [], []]

    def change(batch: int, op: str, row: Any, was: Any = None, literal: Any = None, was_literal: Any = None) -> None:
        seq = 100 * batch + len(batches[batch]) + 1
        noted = {**(literal or {}), **{f"_before.{name}": text for name, text in (was_literal or {}).items()}}
        batches[batch].append(Change(op, row, seq, 0, was, literal=noted or None))

    for row in ROWS:
        change(0, "c", row)
        change(0, "c", row)
    for literal in (ZERO, ODD, ZERO):
        change(0, "c", {}, literal=literal)
    for one, next_ in pairwise(ROWS):
        change(1, "u", next_, one)
    change(1, "u", {"w": "a"}, {"w": "a"})
    change(1, "u", {}, {}, literal=ODD, was_literal=ZERO)
    change(2, "d", {}, literal=ODD)
    change(2, "u", {"d": -0.0}, {"d": 0.0})
    change(2, "u", {"w": "A"}, {"w": "a"})
    change(2, "u", {"w": "a"}, {"w": "A"})
    return batches


@pytest.fixture
def log(
    request: pytest.FixtureRequest, mariadb_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TargetLine]:
    """A target of two shards of a table without a key, by its number."""
    monkeypatch.setenv("TARGET_URL", mariadb_target.url)
    collated = {name: f"{kind} COLLATE utf8mb4_general_ci" for name, kind in KINDS.items() if name in "we"}
    columns = ", ".join(f"{name} {collated.get(name, kind)}" for name, kind in KINDS.items())
    sharding, rule = {"key": "n", "databases": 2, "tables": 1}, {"no_key": "rows", "on_truncate": "apply"}
    with target_line(request, mariadb_target, tmp_path, LOG, f"{columns}, extra INT", sharding, rule=rule) as line:
        line.query("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        yield line


Brief = tuple[Any, ...]


def rows_of(line: TargetLine) -> Counter[Brief]:
    brief = "n, w, CAST(d AS CHAR), CAST(t AS CHAR), CAST(b AS UNSIGNED), e, j, HEX(r), m, CAST(f AS CHAR)"
    return Counter(row for place in line.places for row in line.query(f"SELECT {brief} FROM {place}"))


def counted(*batches: list[Change]) -> Counter[Brief]:
    """What the changes leave, as `rows_of` shows it."""

    def brief(row: Any, literals: dict[str, str]) -> Brief:
        number, time, raw, real = row.get("d"), row.get("t"), row.get("r"), row.get("f")
        return (
            row["n"], row.get("w"), None if number is None else f"{number:g}".replace("+", ""),
            literals.get("t", None if time is None else time.isoformat(" ", "milliseconds")),
            row.get("b"), row.get("e"), row.get("j"), None if raw is None else raw.hex().upper(), row.get("m"),
            None if real is None else str(real),
        )  # fmt: skip

    found: Counter[Brief] = Counter()
    for changes in batches:
        for change in changes:
            found[brief(change.row, dict(change.literal or {}))] += -1 if change.op == "d" else 1
            if change.op == "u":
                was = {
                    name.removeprefix("_before."): text for name, text in (change.literal or {}).items() if "." in name
                }
                found[brief(change.before, was)] -= 1
    return +found


def test_runs_that_take_over_repeat_and_wake_late_leave_as_many_copies_as_the_source_has(log: TargetLine) -> None:
    batches = [
        [replace(change, row={**change.row, "n": 1}, before={**(change.before or {}), "n": 1}) for change in changes]
        for changes in history()
    ]
    batches[2] += [
        Change("u", {"n": 2, "w": "moved"}, 298, before={"n": 1, "w": "a"}),
        Change("c", {"n": 2, "w": "moved"}, 299),
    ]
    first, longer, last = (log.planned(*batches[:count]) for count in (1, 2, 3))
    log.again(longer)
    assert rows_of(log) == counted(*batches[:2])
    log.again(last, quality=True)
    expected = counted(*batches)
    assert rows_of(log) == expected
    assert max(expected.values()) > 2
    assert log.query(f"SELECT w FROM {log.places[0]}") == [("moved",), ("moved",)]
    for plan in (first, longer, last):
        log.again(plan)
        log.adds_up(plan)
        assert rows_of(log) == expected
        _, _, written = log.counts(plan)
        assert sum(counts.written for counts in written) == 0


def test_a_truncate_drops_what_was_before_it_and_empties_each_shard_once(log: TargetLine) -> None:
    first = [Change("c", {"n": n}, 10 + at) for at, n in enumerate((1, 2, 1))]
    second = [
        Change("d", {"n": 1}, 20), Change("c", {"n": 3}, 21), Change("t", {}, 22), Change("c", {"n": 4}, 23),
    ]  # fmt: skip
    log.again(log.planned(first))
    plan = log.planned(first, second)
    log.again(plan, quality=True)
    log.adds_up(plan)
    assert rows_of(log) == counted(second[-1:])
    log.query(f"INSERT INTO {log.places[0]} (n) VALUES (8)")
    log.again(plan)
    assert sum(rows_of(log).values()) == 2
