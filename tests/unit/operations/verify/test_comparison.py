"""Any interleaving of writes, reads and applied batches is explained; any row that none explains is a finding."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_core.history.events import TABLE
from cdc_core.model.staged_columns import OP, ROW, SEQ, SOURCE, TS
from cdc_core.operations.verify import comparison as module
from cdc_core.operations.verify.comparison import Comparison, Verdict
from cdc_core.operations.verify.judgement import EVENT_COLUMNS, Wrong

KEYS = 4


@dataclass(frozen=True)
class Change:
    """At a place of the log: a key has a value, or none; or, without a key of its own, all keys have none."""

    key: int | None
    value: str | None


@dataclass(frozen=True)
class World:
    """changes: one at each place. low, high: of the read. read_at: where each key was read. consumed: batches of one
    change each that the target had; applied: up to where it has each key, at least that."""

    changes: tuple[Change, ...]
    low: int
    high: int
    read_at: tuple[int, ...]
    consumed: int
    applied: tuple[int, ...]


def state(changes: Sequence[Change], key: int, until: int) -> str | None:
    value = None
    for change in changes[:until]:
        if change.key in (key, None):
            value = change.value
    return value


def any_world(chance: random.Random) -> World:
    changes = tuple(
        Change(None, None) if chance.random() < 0.05 else Change(chance.randrange(KEYS), chance.choice([None, *"abc"]))
        for _ in range(chance.randrange(14))
    )
    low, high = sorted(chance.randint(0, len(changes)) for _ in range(2))
    consumed = chance.randint(0, len(changes))
    return World(
        changes, low, high, tuple(chance.randint(low, high) for _ in range(KEYS)), consumed,
        tuple(chance.randint(consumed, len(changes)) for _ in range(KEYS)),
    )  # fmt: skip


Values = list[str | None]


def judged(
    folder: Path,
    cases: Sequence[tuple[World, Values, Values]],
    *,
    known_from: int | None = None,
    formers: bool = False,
    by_file: int = 0,
    at_once: int = 1 << 16,
) -> tuple[Verdict, dict[str, Wrong]]:
    """Each world is a source of its own; findings by `world/key`. known_from: changes before it are not staged.
    formers: a change says what its row was before. by_file: so many changes of the only world are read at a time, the
    newest first, until no earlier one matters. at_once: keys that are judged at once, and events that they may have
    before those that do not matter are left out."""
    with pytest.MonkeyPatch.context() as patch, Comparison(folder, keyed=True) as comparison:
        patch.setattr(module, "_KEYS", at_once)
        patch.setattr(module, "_PART_EVENTS", at_once)
        events: list[Event] = []
        rows: dict[str, dict[str, str]] = {"source": {}, "target": {}}
        for number, (world, source, target) in enumerate(cases):
            name = f"s{number}"
            for side, values in (("source", source), ("target", target)):
                rows[side] |= {f"{number}/{key}": value for key, value in enumerate(values) if value is not None}
            begun = 0 if known_from is None else min(known_from, world.low, world.consumed)
            for seq, change in enumerate(world.changes):
                if seq >= begun:
                    key = None if change.key is None else f"{number}/{change.key}"
                    told = [state(world.changes, change.key, seq)] if formers and change.key is not None else []
                    bounds = (world.low, world.high)
                    events.append(event(key, change.value, seq, world.consumed, *told, bounds=bounds, source=name))
        numbers = compared(comparison, rows)
        differences = comparison.differences()
        if by_file:
            ((world, _, _),) = cases
            last = max((seq for seq, *_ in events), default=-1)
            while last >= 0:
                known = differences.known_from(min(world.low, world.consumed))
                if known is not None and last < known:
                    break
                differences.add(table([change for change in events if last - by_file < change[0] <= last], numbers))
                last -= by_file
        else:  # of small files
            for at in range(0, len(events), 5):
                differences.add(table(events[at : at + 5], numbers))
        verdict = differences.judge(whole=known_from is None, most=1000)
        return verdict, {difference.key: difference.wrong for difference in verdict.first}


Event = tuple[int, str | None, dict[str, Any]]
"""Its place, its key, and what else EVENT_COLUMNS has."""


def event(
    key: str | None,
    value: str | None,
    seq: int,
    consumed: int,
    *told: str | None,
    bounds: tuple[int, int] = (9, 9),
    source: str = "s",
    table: str = "t",
) -> Event:
    """bounds: low and high of the source's read. told: what the row was before, if the change says it."""
    low, high = bounds
    op = "u" if value is not None else "t" if key is None else "d"
    return seq, key, {
        OP: op, TS: seq, SOURCE: source, TABLE: table, SEQ: seq, ROW: 0, "text": value, "place": 0, "partial": False,
        "told": bool(told), "former": told[0] if told else None, "former_place": 0, "source_has": seq < low,
        "source_may": low <= seq < high, "target_has": seq < consumed,
    }  # fmt: skip


def table(events: Sequence[Event], numbers: Mapping[str, int]) -> pa.Table:
    """Those of keys that differ, by their numbers, and of all keys."""
    some = [{"key": numbers.get(key or ""), **values} for _, key, values in events if key is None or key in numbers]
    return pa.Table.from_pylist(some, EVENT_COLUMNS)


def compared(comparison: Comparison, rows: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """The numbers of the keys that differ. rows: of each side, texts by key."""
    for side, there in rows.items():
        places = pa.array([0] * len(there), pa.int64())
        comparison.add(side, pa.array(there.keys(), pa.string()), pa.array(there.values(), pa.string()), places)
    comparison.differing()
    return {key: number for number, key in enumerate(comparison.differing_keys().to_pylist())}


def sides(world: World) -> tuple[Values, Values]:
    return (
        [state(world.changes, key, at) for key, at in enumerate(world.read_at)],
        [state(world.changes, key, at) for key, at in enumerate(world.applied)],
    )


WORLDS = 50
"""One database for many: opening one costs more than they do."""
EXAMPLES = [3, pytest.param(100, marks=pytest.mark.matrix)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_lag_is_never_a_difference(tmp_path_factory: pytest.TempPathFactory, examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        seed=st.integers(0), count=st.sampled_from([1, WORLDS]), known_from=st.integers(0, 6),
        at_once=st.sampled_from([50, 1 << 16]),
    )  # fmt: skip
    @example(seed=1, count=WORLDS, known_from=3, at_once=1 << 16)
    @example(seed=0, count=WORLDS, known_from=1, at_once=50)
    def check(seed: int, count: int, known_from: int, at_once: int) -> None:
        chance = random.Random(seed)
        cases = [(world, *sides(world)) for world in (any_world(chance) for _ in range(count))]
        verdict, findings = judged(tmp_path_factory.mktemp("c"), cases, at_once=at_once)
        assert (verdict.unsettled, findings) == (0, {})
        # Of rows from before the first staged change the stage knows nothing; a lag is still not a difference.
        _, findings = judged(tmp_path_factory.mktemp("c"), cases, at_once=at_once, known_from=known_from)
        assert findings == {}
        # But of a row that changes, its first change says enough. A TRUNCATE does not.
        _, findings = judged(tmp_path_factory.mktemp("c"), cases, at_once=at_once, known_from=known_from, formers=True)
        assert findings == {}
        cases = [case for case in cases if all(change.key is not None for change in case[0].changes)]
        verdict, findings = judged(
            tmp_path_factory.mktemp("c"), cases, at_once=at_once, known_from=known_from, formers=True
        )
        assert (verdict.unsettled, findings) == (0, {})

    check()


def test_what_a_row_was_before_its_first_change_does_not_hide_that_it_is_wrong(tmp_path: Path) -> None:
    """Both sides have the change, and one has the row as it was before."""
    world = World((Change(0, "a"), Change(0, "b")), 2, 2, (2,) * KEYS, 2, (2,) * KEYS)
    behind: Values = ["a", None, None, None]
    there: Values = ["b", None, None, None]
    verdict, findings = judged(tmp_path, [(world, there, behind)], known_from=1, formers=True)
    assert (verdict.moving, findings) == (0, {"0/0": Wrong.TARGET})
    verdict, findings = judged(tmp_path, [(world, behind, there)], known_from=1, formers=True)
    assert (verdict.moving, findings) == (0, {"0/0": Wrong.STAGE})


FAULTS = {"target": Wrong.TARGET, "source": Wrong.STAGE, "both": Wrong.BOTH}


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_row_that_no_change_explains_is_a_finding_that_accuses_the_right_side(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(seed=st.integers(0), at_once=st.sampled_from([50, 1 << 16]))
    def check(seed: int, at_once: int) -> None:
        chance = random.Random(seed)
        cases, expected = [], {}
        for number in range(WORLDS):
            world, key, where = any_world(chance), chance.randrange(KEYS), chance.choice(sorted(FAULTS))
            source, target = sides(world)
            if where != "source":
                target[key] = "fault"
            if where != "target":
                source[key] = "unlogged"
            cases.append((world, source, target))
            expected[f"{number}/{key}"] = FAULTS[where]
        verdict, findings = judged(tmp_path_factory.mktemp("c"), cases, at_once=at_once)
        assert findings == expected
        assert verdict.unsettled == 0

    check()


@pytest.mark.parametrize("examples", [12, pytest.param(1000, marks=pytest.mark.matrix)])
def test_what_is_not_read_because_it_cannot_matter_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(seed=st.integers(0), by_file=st.sampled_from([1, 2, 3]), where=st.sampled_from([*FAULTS, ""]))
    def check(seed: int, by_file: int, where: str) -> None:
        chance = random.Random(seed)
        world, key = any_world(chance), chance.randrange(KEYS)
        source, target = sides(world)
        fault = chance.choice(["fault", None, *"abc"])
        if where in ("target", "both"):
            target[key] = fault
        if where in ("source", "both"):
            source[key] = fault
        case = [(world, source, target)]
        everything = judged(tmp_path_factory.mktemp("c"), case)
        assert judged(tmp_path_factory.mktemp("c"), case, formers=True, by_file=by_file) == everything

    check()


def test_only_what_may_be_under_way_is_read_of_a_row_that_changes(tmp_path: Path) -> None:
    world = World((Change(0, "a"), Change(1, "x"), Change(2, "x"), Change(0, "b")), 4, 4, (4,) * KEYS, 3, (3,) * KEYS)
    with Comparison(tmp_path, keyed=True) as comparison:
        values = dict(zip(("source", "target"), sides(world), strict=True))
        there = {
            side: {f"0/{key}": value for key, value in enumerate(some) if value is not None}
            for side, some in values.items()
        }
        numbers = compared(comparison, there)
        differences = comparison.differences()
        assert differences.known_from(3) is None
        differences.add(table([event("0/0", "b", 3, 3, "a", bounds=(4, 4))], numbers))
        assert differences.known_from(3) == 3


@pytest.mark.parametrize(
    ("applied", "target", "wrong"),
    [(1, "old", None), (4, "new", None), (4, "old", Wrong.TARGET), (4, None, Wrong.TARGET), (1, "x", Wrong.TARGET)],
)
def test_a_row_that_moves_to_another_source_table_is_that_of_the_other(
    tmp_path: Path, applied: int, target: str | None, wrong: Wrong | None
) -> None:
    """It is created there, changed here, and deleted here, in one transaction."""
    log = (("t0", "old"), ("t1", "new"), ("t0", "going"), ("t0", None))
    events = [event("0", value, seq, applied, table=name) for seq, (name, value) in enumerate(log)]
    with Comparison(tmp_path, keyed=True, apart=True) as comparison:
        there = {side: {"0": row} for side, row in (("source", "new"), ("target", target)) if row is not None}
        numbers = compared(comparison, there)
        differences = comparison.differences()
        differences.add(table(events, numbers))
        assert [difference.wrong for difference in differences.judge(whole=True, most=9).first] == (
            [wrong] if wrong else []
        )


def test_without_a_staged_change_nothing_says_which_side_is_wrong(tmp_path: Path) -> None:
    world = World((Change(0, "a"),), 1, 1, (1,) * KEYS, 1, (1,) * KEYS)
    _, findings = judged(tmp_path, [(world, [None, "x", None, None], [None, "y", None, None])], known_from=1)
    assert findings == {"0/1": Wrong.UNKNOWN}


def test_an_even_number_of_equal_changes_does_not_cancel(tmp_path: Path) -> None:
    """As it does in an XOR of CRC32."""
    here = {"a": "10:01", "b": "10:02", "c": "10:03", "d": "10:04"}
    there = {key: text.replace("10", "11") for key, text in here.items()}
    with Comparison(tmp_path, keyed=True) as comparison:
        assert len(compared(comparison, {"source": here, "target": there})) == len(here)
