"""A mirror is what the newest change of each key says, whatever the order, the batches and the repeats of runs."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.errors import ValuesAbsent
from cdc_core.lake import absent_values, compaction, data_files
from cdc_core.lake.absent_values import parts_to_fill
from cdc_core.lake.compaction import DELETED_SHARE
from cdc_core.lake.held_rows import rows_at
from cdc_core.lake.lake_schema import DELETED, DELETED_AT
from cdc_core.lake.mirror import judged
from cdc_core.model.merged_columns import RowClass
from cdc_core.model.version import VERSION_COLUMN
from tests.lab.made_lake import MadeLake, Winner, delete, deleted_share, upsert

ZONE = dt.UTC
KEYS: dict[str, tuple[list[pa.DataType], Callable[[random.Random], tuple[Any, ...]]]] = {
    "int": ([pa.int32()], lambda r: (r.randint(-20, 40),)),
    "long": ([pa.int64()], lambda r: (r.choice([-(1 << 63), (1 << 63) - 1, 0, *range(30)]),)),
    "text": (
        [pa.string()],
        lambda r: (r.choice(["", "a long beginning, and ", "ü", "😀", "\uffff"]) + r.choice(["", "a", "é", "😀x"]),),
    ),
    "composite": ([pa.int16(), pa.string()], lambda r: (r.randint(0, 5), r.choice(["", "x", "xx", "y", "ÿ"]))),
    "decimal": ([pa.decimal128(20, 0)], lambda r: (Decimal(r.choice([0, 2**64 - 1, *range(30)])),)),
    "decimal with scale": ([pa.decimal128(10, 2)], lambda r: (Decimal(r.randint(-1500, 1500)) / 100,)),
    "timestamp": (
        [pa.timestamp("us")],
        lambda r: (dt.datetime(1969, 12, 31, 23, 59, 59, 999_990) + dt.timedelta(microseconds=r.randint(0, 30)),),
    ),
    "timestamp with zone": (
        [pa.timestamp("us", tz="UTC")],
        lambda r: (dt.datetime(2024, 2, 29, tzinfo=ZONE) + dt.timedelta(seconds=r.randint(0, 30)),),
    ),
    "date": ([pa.date32()], lambda r: (dt.date(1969, 12, 20) + dt.timedelta(days=r.randint(0, 30)),)),
    "binary": ([pa.binary()], lambda r: (bytes(r.choice([0, 0, 1, 255]) for _ in range(r.randint(0, 4))),)),
    "flag": ([pa.bool_(), pa.int32()], lambda r: (r.random() < 0.5, r.randint(0, 10))),
}


class FlaggedMirror:
    """A mirror that keeps deleted rows, in plain Python: what is under each key, and the last TRUNCATE."""

    def __init__(self, width: int) -> None:
        self.width, self.emptied = width, Winner(-1, None, "t")
        self.rows = dict[tuple[Any, ...], tuple[Any, Winner]]()
        """(the value, the change that the row is from, which may be a delete or a TRUNCATE)"""

    def apply(self, winners: Iterable[Winner]) -> None:
        every = list(winners)
        self.emptied = max(
            (self.emptied, *(change for change in every if change.row is None)), key=lambda change: change.seq
        )
        for key, (value, change) in self.rows.items():
            if change.op == "u" and change.seq < self.emptied.seq:
                self.rows[key] = value, self.emptied
        for change in every:
            if change.row is not None and change.seq > self.emptied.seq:
                key = change.row[: self.width]
                if key not in self.rows or self.rows[key][1].seq < change.seq:
                    self.rows[key] = change.row[self.width], change

    def expected(self) -> dict[tuple[Any, ...], tuple[Any, bytes, bool, dt.datetime | None]]:
        """By key: value, version, whether deleted, when."""
        return {
            key: (value, winner.version, winner.op != "u", None if winner.op == "u" else moment(winner.ts_us))
            for key, (value, winner) in self.rows.items()
        }


def moment(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, ZONE) + dt.timedelta(microseconds=us)


class World:
    """All changes that runs have brought, in whatever order; and what follows from them."""

    def __init__(self, width: int) -> None:
        self.width, self.known = width, dict[int, Winner]()

    def add(self, changes: Iterable[Winner]) -> None:
        self.known |= {change.seq: change for change in changes}

    def expected(self) -> tuple[dict[tuple[Any, ...], tuple[Any, bytes]], dict[tuple[Any, ...], bytes]]:
        """(rows by key, tombstones by key); a TRUNCATE's has a key of nulls."""
        emptied = max((change.seq for change in self.known.values() if change.row is None), default=-1)
        last = last_of(change for change in self.known.values() if change.seq > emptied)
        rows = {
            key: (change.row[self.width], change.version)
            for key, change in last.items()
            if change.row and change.op == "u"
        }
        buried = {key: change.version for key, change in last.items() if change.op == "d"}
        if emptied >= 0:
            buried[(None,) * self.width] = self.known[emptied].version
        return rows, buried


def winners_of(changes: Sequence[Winner]) -> list[Winner]:
    """As merge makes them of a batch: the last change of each key, unless a TRUNCATE came after it."""
    emptied = max((change for change in changes if change.row is None), key=lambda change: change.seq, default=None)
    last = last_of(change for change in changes if emptied is None or change.seq > emptied.seq)
    return [*last.values(), *([emptied] if emptied is not None else [])]


def last_of(changes: Iterable[Winner]) -> dict[tuple[Any, ...], Winner]:
    found: dict[tuple[Any, ...], Winner] = {}
    for change in sorted(changes, key=lambda each: each.seq):
        if change.row is not None:
            found[change.row[:-1]] = change
    return found


@pytest.fixture
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are several groups and files."""
    monkeypatch.setattr(data_files, "GROUP_ROWS", 5)
    monkeypatch.setattr(data_files, "FILE_GROUPS", 2)
    monkeypatch.setattr(compaction, "FILE_GROUPS", 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("_small_files")
def test_a_mirror_is_what_the_newest_changes_say(kind: str, seed: int, tmp_path: Path) -> None:
    names = names_of(kind)
    lake, world = made(kind, tmp_path), World(len(names))
    for changes, winners, files in histories(kind, seed):
        world.add(changes)
        done = lake.apply(*winners, files=files)
        assert sum(done.classes.values()) == len(winners)
        require_as_expected(lake, world, names)
        assert lake.apply(*winners).snapshots == [], "a repeated run changed something"
    require_as_expected(lake, world, names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "text", "composite"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("_small_files")
def test_a_mirror_that_keeps_deleted_rows_loses_no_key(kind: str, seed: int, tmp_path: Path) -> None:
    names = names_of(kind)
    lake, world, model = made(kind, tmp_path, flagged=True), World(len(names)), FlaggedMirror(len(names))
    for changes, winners, files in histories(kind, seed):
        world.add(changes)
        model.apply(winners)
        lake.apply(*winners, files=files)
        rows = lake.scanned()
        found = {
            tuple(row[name] for name in names): (row["v"], row[VERSION_COLUMN], row[DELETED], row[DELETED_AT])
            for row in rows
        }
        assert len(rows) == len(found)
        assert found == model.expected()
        present, buried = world.expected()  # whatever the order of the runs
        assert {key: row[:2] for key, row in found.items() if not row[2]} == present
        entombed = [tuple(row.values()) for row in lake.scanned(tombstones=True)]
        assert entombed == [(*key, version) for key, version in buried.items() if None in key]
        assert lake.apply(*winners).snapshots == [], "a repeated run changed something"


def test_a_row_under_the_key_of_a_deleted_one_is_another_row(tmp_path: Path) -> None:
    """It is new, and has nothing of that one."""
    lake = MadeLake(tmp_path, [("id", pa.int64()), ("v", pa.int64())], flagged=True)
    lake.apply(upsert(1, 0, 10), upsert(1, 1, 11), upsert(1, 2, 12))
    lake.apply(Winner(2, (0, None), "d", absent=("v",)), Winner(3, (9, None), "d", absent=("v",)), delete(4, 1, 21))
    deleted = {row["id"]: row["v"] for row in lake.scanned() if row[DELETED]}
    assert deleted == {0: 10, 9: None, 1: 21}  # as the mirror had it, as nobody knows it, as the log has it
    with pytest.raises(ValuesAbsent):
        lake.attempt(Winner(5, (0, None), absent=("v",)))
    done = lake.apply(upsert(6, 0, 7), Winner(6, (1, 8), born=False), delete(7, 9, 1))
    assert done.classes == {RowClass.INSERT: 1, RowClass.REVIVED: 1, RowClass.ABSENT: 1}
    assert {row["id"]: (row["v"], row[DELETED]) for row in lake.scanned()} == {
        0: (7, False), 1: (8, False), 2: (12, False), 9: (1, True),
    }  # fmt: skip


def names_of(kind: str) -> list[str]:
    return [f"k{at}" for at in range(len(KEYS[kind][0]))]


def made(kind: str, folder: Path, *, flagged: bool = False) -> MadeLake:
    names = names_of(kind)
    columns = [*zip(names, KEYS[kind][0], strict=True), ("v", pa.int64())]
    return MadeLake(folder, columns, names, flagged=flagged)


def histories(kind: str, seed: int) -> Iterator[tuple[list[Winner], list[Winner], int]]:
    """Runs over one log, in whatever order: their changes, the winners, and in how many files these are."""
    dice = random.Random(f"{kind} {seed}")
    key_of = KEYS[kind][1]
    log = []
    for seq in range(1, 400):
        op = dice.choices(["u", "d", "t"], [70, 28, 2 if seed else 0])[0]
        row = None if op == "t" else (*key_of(dice), seq)
        log.append(Winner(seq, row, op, born=dice.random() < 0.5, ts_us=dice.randint(0, 9)))
    past = list[list[Winner]]()
    while len(past) < 14:
        if past and dice.random() < 0.3:
            changes = dice.choice(past)  # again, also after newer ones
        elif dice.random() < 0.6:
            begin = dice.randrange(len(log))
            changes = log[begin : begin + dice.randint(1, 60)]
        else:
            changes = dice.sample(log, dice.randint(1, 30))
        past.append(changes)
        winners = winners_of(changes)
        dice.shuffle(winners)
        yield changes, winners, dice.randint(1, 3)


def require_as_expected(lake: MadeLake, world: World, names: list[str]) -> None:
    rows, buried = world.expected()
    found = lake.scanned()
    assert len(found) == len(rows)
    assert {tuple(row[name] for name in names): (row["v"], row[VERSION_COLUMN]) for row in found} == rows
    entombed = lake.scanned(tombstones=True)
    assert len(entombed) == len(buried)
    assert {tuple(row[name] for name in names): row[VERSION_COLUMN] for row in entombed} == buried
    for live in (lake.live(), lake.live(tombstones=True)):
        assert all(len(file.deletes) <= 1 and deleted_share(file) <= DELETED_SHARE for file in live.files)


def test_what_is_held_instead_of_stale_rows_says_how_far_the_log_was(tmp_path: Path) -> None:
    """A run compares it with what is staged: a stage that began again must not count as older for ever."""
    lake = MadeLake(tmp_path, [("id", pa.int64()), ("v", pa.int64())])
    lake.apply(upsert(50, 0, 0), upsert(60, 1, 0), delete(70, 2, 0))
    tables = lake.opened()
    mirror = tables.mirror(*tables.live())
    assert next(judged(mirror, lake.winners([upsert(80, 0, 1)]), []))[1] == {}
    assert next(judged(mirror, lake.winners([upsert(10, 0, 1), upsert(11, 1, 1)]), []))[1] == {"one": 60}
    assert next(judged(mirror, lake.winners([upsert(12, 2, 1)]), []))[1] == {"one": 70}


def test_values_that_the_log_lacks_are_read_for_a_bounded_part_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes may be short, and the values that they lack long."""
    lake = MadeLake(tmp_path, [("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
    for module in (data_files, absent_values):
        monkeypatch.setattr(module, "GROUP_BYTES", 100_000)
    lake.apply(*(upsert(1, at, 0, f"{at:05}" * 2000) for at in range(200)))
    monkeypatch.setattr(absent_values, "FILLED_BYTES", 150_000)
    sizes: list[int] = []

    def spied(*given: Any) -> pa.Table:
        read = rows_at(*given)
        sizes.append(read.nbytes)
        return read

    monkeypatch.setattr(absent_values, "rows_at", spied)
    lake.apply(*(Winner(2, (at, 1, None), born=False, absent=("v",)) for at in range(200)))
    assert max(sizes) <= 150_000
    assert sum(sizes) > 2_000_000
    assert {row["id"]: (row["n"], row["v"]) for row in lake.scanned()} == {
        at: (1, f"{at:05}" * 2000) for at in range(200)
    }


def test_a_mirror_of_tiny_files_cuts_no_run_into_tiny_parts(tmp_path: Path) -> None:
    """Files may have a row each, and a run many rows of which few lack values, or many that are stale."""
    lake = MadeLake(tmp_path, [("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
    for at in range(9):
        lake.apply(upsert(10, at, 0, "held"))
    tables = lake.opened()
    mirror = tables.mirror(*tables.live())
    complete = [upsert(20, at, 1, "new") for at in range(100, 1100)]
    lacking = [Winner(20, (at, 1, None), born=False, absent=("v",)) for at in range(9)]
    stale = [Winner(5, (at % 9, 1, None), born=False, absent=("v",)) for at in range(1000)]
    for rows in ([*complete, *lacking], stale):
        parts = parts_to_fill(mirror.live, lake.winners(rows))
        assert (parts[0], parts[-1], len(parts) <= 7) == (0, len(rows), True)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.date32(), dt.date(2024, 1, 5), "2024-01-05"),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        (pa.timestamp("us"), dt.datetime(2024, 1, 5, 10), "2024-01-05 10:00:00.000000"),
        (pa.binary(), b"\x01\xffa", "01FF61"),
        (pa.string(), "O'Brien \\", "O'Brien \\"),
    ],
)
def test_errors_show_a_key_as_the_source_writes_it(tmp_path: Path, kind: pa.DataType, value: Any, shown: str) -> None:
    """By these texts, an erasure finds it there."""
    lake = MadeLake(tmp_path, [("k", kind), ("v", pa.string())], ("k",))
    with pytest.raises(ValuesAbsent, match=re.escape(f"of the row k={shown}.")):
        lake.apply(Winner(1, (value, None), born=False, absent=("v",)))
