"""Erasure: rows of the keys go from everything on the stage, all others stay, after every kill."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pymysql.err import OperationalError

import lockstep
from cdc_core.errors import DataAtRisk, LeaseHeld, Refused, RetryLater, UsageError
from cdc_core.meta.batches import Batches
from cdc_core.meta.meta_rows import PlannedRun
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.apply import retention
from cdc_core.operations.forget import erasable, forgetting
from cdc_core.operations.forget.erased_keys import ErasedKeys, texts_of
from cdc_core.operations.forget.forgetting import ErasureReport, forget
from cdc_core.operations.rebuild import rebuild
from cdc_core.operations.verify.verify_job import verifier_lease
from cdc_core.stage import erasures, manifest
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.tables.target_keys import key_collapse
from cdc_core.targets.tables.text_columns import row_keys
from cdc_core.targets.writing.load import rejected
from tests.integration.test_canaries import seen, written
from tests.lab.made_blocks import Change, Made
from tests.lab.made_line import Line
from tests.lab.made_stages import KEYLESS, NOTE
from tests.lab.made_stages import insert as insert_row
from tests.lab.opened import opened_line
from tests.lab.refusals import raises
from tests.unit.operations.apply.test_compact import HOUR_US, Staged, insert, staged, update

ORDERS = "shop.orders"
__all__ = ["staged"]


class Killed(BaseException):
    """As by kill -9: nothing handles it."""


class DyingStore:
    """Dies before the n-th call that changes something."""

    def __init__(self, store: Any, steps: int) -> None:
        self.store, self.left = store, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("put", "put_if_absent", "delete", "open_output", "discard"):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self.step()
            return found(*args, **named)

        return call

    def around(self, write: Callable[..., None]) -> Callable[..., None]:
        """A write to meta, before and after which it may die, too."""

        def call(*args: Any) -> None:
            self.step()
            write(*args)
            self.step()

        return call

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def free(staged: Staged) -> Staged:
    """Nobody extracts, and no target is asked."""
    for lease in staged.line.leases.values():
        staged.line.meta.leases.release(lease)
    staged.line.leases.clear()
    return replace(staged, line=staged.line.with_targets())


def erase(staged: Staged, *keys: str, table: str = ORDERS, **options: Any) -> ErasureReport:
    return forget(opened_line(staged.line), table, keys, although_it_exists=True, **options)


def without(found: dict[Any, Any], *ids: int) -> dict[Any, Any]:
    """What readers see, without the rows of orders with these ids."""
    return {
        name: [row for row in rows if row["id"] not in ids] if name[0] == ORDERS and isinstance(rows, list) else rows
        for name, rows in found.items()
    }


def canaries(staged: Staged) -> list[str]:
    return seen(written(staged.root), "canary")


def lives(staged: Staged) -> Staged:
    """The life of row 9, with a canary in each image."""
    hour = 30 * HOUR_US
    old, new = {"id": 9, "note": "canary-old"}, {"id": 9, "note": "canary-new"}
    change = replace(update(9), after=new, before=old)
    staged.stage(hour, Made([insert(9, note="canary-old"), insert(10)], ts=hour + 1))
    staged.stage(hour + HOUR_US, Made([change], ts=hour + HOUR_US + 1), Made([insert(11)], ts=hour + HOUR_US + 2))
    staged.stage(hour + 2 * HOUR_US, Made([replace(insert(9, note="canary-new"), op="d")], ts=hour + 2 * HOUR_US + 1))
    staged.stage(60 * HOUR_US, Made([insert(12)], ts=60 * HOUR_US + 1))
    return free(staged)


def as_staged(staged: Staged) -> None:
    """As it is."""


def compacted(staged: Staged) -> None:
    assert len(staged.compact().ranges) == 2


def compacted_alone(staged: Staged) -> None:
    """And the originals are gone."""
    compacted(staged)
    assert staged.removed().removed


FORMS: dict[str, tuple[Callable[[Staged], None], set[str]]] = {
    "as staged": (as_staged, {"staged"}),
    "compacted": (compacted, {"staged", "compacted"}),
    "compacted alone": (compacted_alone, {"compacted"}),
}
"""How the rows are staged, and the kinds of places that they have then."""


@pytest.mark.parametrize("form", FORMS)
def test_every_reader_sees_all_rows_but_those_that_were_erased(staged: Staged, form: str) -> None:
    lived = lives(staged)
    FORMS[form][0](lived)
    before = lived.seen()
    assert canaries(lived)
    found = erase(lived, "id=9")
    assert {place.kind for place in found.places} == FORMS[form][1]
    assert canaries(lived) == []
    assert lived.seen() == without(before, 9)
    assert lived.problems() == []
    record = erasures.read(lived.line.store, found.request, ended=True)
    assert record is not None
    assert record.ended_us
    assert (record.rows, record.keys) == (3, 1)
    chain = list(manifest.chain(lived.line.store, "shop"))
    assert sum(each.rows for batch in chain for each in batch.erased) == 3
    files = lived.line.meta.batches.files([batch.batch_id for batch in chain])
    assert [[file.path for file in files[batch.batch_id]] for batch in chain] == [
        [part.path for part in batch.parts] for batch in chain
    ]
    assert erase(lived, "id=9").places == ()


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form == "compacted" else pytest.mark.matrix) for form in FORMS]
)
def test_killed_at_any_step_it_is_ended_by_the_same_command(
    staged: Staged, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = lives(staged)
    FORMS[form][0](lived)
    expected = without({(ORDERS, "changes"): lived.changes()[ORDERS]}, 9)
    kept = tmp_path.parent / f"{tmp_path.name}-kept"
    lived.line.meta.close()
    shutil.copytree(tmp_path, kept)
    steps, ended = 0, False
    while not ended:
        shutil.rmtree(tmp_path)
        shutil.copytree(kept, tmp_path)
        line = Line.open(tmp_path, targets=[])
        dying = DyingStore(line.store, steps)
        with line.meta:
            again = replace(lived, line=line)
            with monkeypatch.context() as patched:
                patched.setattr(Batches, "renew", dying.around(Batches.renew))
                try:
                    erase(replace(again, line=replace(line, store=dying)), "id=9")
                    ended = True
                except Killed:
                    pass
            if list(erasures.unended(line.store)):
                with raises(LeaseHeld, "lease.held"):
                    line.plan("meanwhile")
            erase(again, "id=9")
            assert {(ORDERS, "changes"): again.changes()[ORDERS]} == expected, steps
            assert again.problems() == [], steps
            assert canaries(again) == [], steps
            assert list(erasures.unended(line.store)) == []
        steps += 1
    assert steps > 8


def test_a_row_that_changed_its_key_goes_under_both_keys_or_not_at_all(staged: Staged) -> None:
    freed = free(staged)
    before = freed.seen()
    with raises(Refused, "stage.key") as caught:
        erase(freed, "id=2")
    assert "--key id=20" in caught.value.remedy
    assert freed.seen() == before
    assert freed.paths("erasures/") == []
    erase(freed, "id=2", '{"id": 20}')
    assert freed.seen() == without(before, 2, 20)
    assert freed.problems() == []


def test_what_cannot_be_erased_is_refused_and_nothing_is_changed(staged: Staged) -> None:
    staged.stage(28 * HOUR_US, Made([insert_row(1, schema=KEYLESS)], ts=28 * HOUR_US + 1))
    with raises(LeaseHeld, "lease.held", match="being extracted"):
        erase(replace(staged, line=staged.line.with_targets()), "id=1")
    freed, store = free(staged), staged.line.store
    before = {info.path: info.modified for info in store.list("")}
    with raises(UsageError, "usage.unknown_name", match="id=99"):
        erase(freed, "id=1", "id=99")
    for wrong in ("1", "id=one", "name=1", "id=1,note=2", '{"id": null}', "{"):
        with raises(UsageError, "usage.argument"):
            erase(freed, wrong)
    with raises(Refused, "stage.key"):
        erase(freed, "n=1", table="shop.log")
    with raises(Refused, "stage.not_committed", match="has not committed"):
        erase(replace(freed, line=freed.line.with_targets({"name": "t", "tables": {"shop.items": {}}})), "id=1")
    for nothing in ({}, {"where": "id > 100"}):
        with raises(UsageError, "usage.unknown_name" if nothing else "usage.argument"):
            erase(freed, **nothing)
    for wrong in ("id =", "id = 1) OR (nothing = 2"):
        with raises(UsageError, "stage.sql"):
            erase(freed, where=wrong)
    assert {info.path: info.modified for info in store.list("")} == before
    freed.line.meta.runs.claim(PlannedRun("r", "line", None, "plan.json", "0", replays=True), ())
    with raises(Refused, "stage.not_committed", match="run r"):
        erase(freed, "id=1")
    assert {info.path: info.modified for info in store.list("")} == before


@pytest.mark.parametrize("condition", ["note = 'canary-old'", "note = 'canary-new' -- now", "id > 8 AND id < 10"])
def test_rows_are_found_by_what_they_ever_were(staged: Staged, condition: str) -> None:
    lived = lives(staged)
    compacted_alone(lived)
    before = lived.seen()
    assert erase(lived, where=condition).keys == 1
    assert canaries(lived) == []
    assert lived.seen() == without(before, 9)


def test_killed_it_is_ended_by_the_same_condition_although_rows_are_gone_by_which_it_was_true(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived, condition = lives(staged), "note LIKE 'canary%'"
    with monkeypatch.context() as patched:
        patched.setattr(Batches, "renew", DyingStore(None, 0).around(Batches.renew))
        with pytest.raises(Killed):
            erase(lived, where=condition)
    assert 9 not in [row["id"] for row in lived.changes()[ORDERS]]
    found = erase(lived, where=condition)
    assert canaries(lived) == []
    assert list(erasures.unended(lived.line.store)) == []
    record = erasures.read(lived.line.store, found.request, ended=True)
    assert record is not None
    assert (record.whole, record.rows, record.found) == (True, 3, ())
    assert [each.task for each in lived.line.meta.failures.find()] == []


def test_values_of_the_keys_go_from_the_errors_that_meta_keeps(staged: Staged) -> None:
    kind = ColumnType("varchar", length=90, charset="utf8mb4", collation="utf8mb4_bin")
    people = TableSchema("shop", "people", (Column("name", kind, False, 1), NOTE))
    long = "ann.canary@" + "x" * 70
    made = [insert_row(name, schema=people) for name in (long, "Bob")]  # type: ignore[arg-type]
    staged.stage(40 * HOUR_US, Made(made, ts=40 * HOUR_US + 1))
    freed = free(staged)
    meta, event = freed.line.meta, '{"what": "the key %s", "solved": false}'
    error = DataAtRisk(
        f"No place for {long}.", where=f"the row {long[:40]}…", code="target.row_error", remedy=f"{long}?"
    )
    meta.failures.keep("extract", "shop", error)
    meta.told.settle("r", ["p", "q"], {"p": event % long, "q": event % "Bob"})
    kinds = [place.kind for place in erase(freed, f"name={long}", table="shop.people").places]
    assert kinds == ["staged", "error"]
    (kept,) = meta.failures.find()
    assert (kept.what, kept.where, kept.remedy) == ("No place for ….", "the row …", "…?")
    assert meta.told.settle("r", [], {})[1] == {"p": event % "…", "q": event % "Bob"}


@pytest.mark.parametrize(
    ("key", "said", "left"),
    [
        ("7", "the row {'id': 7}, id=7.", "the row {'id': …}, id=…."),
        ("7", "77 rows of batch shop/7-8 at binlog.000007:7, 1.7 and 7.5 s", None),
        ("1.50", "1.5 or 1.50, not 11.5 or 1.55", "… or …, not 11.5 or 1.55"),
    ],
)
def test_a_short_value_is_a_word(key: str, said: str, left: str | None) -> None:
    kind = ColumnType("decimal", precision=9, scale=2) if "." in key else ColumnType("int")
    columns = (Column("id", kind, False, 1),)
    keys = ErasedKeys("t", columns, texts_of([f"id={key}"], columns))
    assert keys.without_values(said) == (left or said)


def test_a_dry_run_names_the_files_and_changes_nothing(staged: Staged) -> None:
    lived = lives(staged)
    before = lived.paths("")
    found = erase(lived, "id=9", dry_run=True)
    assert [(place.kind, place.rows) for place in found.places] == [("staged", 1)] * 3
    assert lived.paths("") == before
    assert erase(lived, "id=9").places == found.places


@pytest.mark.parametrize("form", FORMS)
def test_a_reader_that_began_before_is_told_to_read_again(staged: Staged, form: str) -> None:
    lived = lives(staged)
    FORMS[form][0](lived)
    stage = lockstep.open(lived.root / "stage")
    erase(lived, "id=9")
    with raises(RetryLater, "stage.removed"):
        stage[ORDERS].changes().to_arrow()
    stage.refresh()
    assert stage[ORDERS].changes().to_arrow().to_pylist() == lived.changes()[ORDERS]


def test_meta_is_rebuilt_and_batches_are_compacted_after_an_erasure(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = lives(staged)
    expected = without(lived.seen(), 9)
    with monkeypatch.context() as patched:
        patched.setattr(Batches, "renew", DyingStore(None, 0).around(Batches.renew))
        with pytest.raises(Killed):
            erase(lived, "id=9")
    chain = list(manifest.chain(lived.line.store, "shop"))
    assert [each.task for each in lived.line.meta.failures.find()] == ["forget"]
    assert rebuild(opened_line(lived.line), "shop")[0] == 0
    files = lived.line.meta.batches.files([batch.batch_id for batch in chain])
    assert [sum(file.rows for file in files[batch.batch_id]) for batch in chain] == [batch.rows for batch in chain]
    erase(lived, "id=9")
    assert lived.line.meta.failures.find() == ()
    assert len(lived.compact().ranges) == 2
    assert lived.seen() == expected
    assert lived.problems() == []


def test_an_erasure_of_other_keys_brings_meta_and_stage_together_and_says_that_rows_may_be_left(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = lives(staged)
    compacted(lived)
    with monkeypatch.context() as patched:
        patched.setattr(Batches, "renew", DyingStore(None, 0).around(Batches.renew))
        with pytest.raises(Killed):
            erase(lived, "id=9")
    erase(lived, "id=10")
    assert list(erasures.unended(lived.line.store)) == []
    records = [erasures.read(lived.line.store, Path(path).stem, ended=True) for path in lived.paths("erased/")]
    assert sorted(record.whole for record in records if record) == [False, True]
    assert lived.problems() == []
    assert lived.line.meta.failures.find() == ()


def test_keys_that_differ_in_letter_case_alone_go_together_where_the_table_takes_them_for_one(staged: Staged) -> None:
    for collation in ("utf8mb4_general_ci", "utf8mb4_bin"):
        kind = ColumnType("varchar", length=20, charset="utf8mb4", collation=collation)
        people = TableSchema("shop", f"people_{collation}", (Column("name", kind, False, 1), NOTE))
        made = [insert_row(name, schema=people) for name in ("Ann", "ann", "Bob")]  # type: ignore[arg-type]
        staged.stage(40 * HOUR_US, Made(made, ts=40 * HOUR_US + 1))
    freed = free(staged)
    for collation, refused in (("utf8mb4_general_ci", True), ("utf8mb4_bin", False)):
        table = f"shop.people_{collation}"
        with raises(Refused, "stage.key") if refused else nullcontext():
            erase(freed, "name=Ann", table=table)
        assert erase(freed, "name=ann", *["name=Ann"] * refused, table=table).places
        assert [row["name"] for row in freed.changes()[table]] == ["Bob"]
    assert freed.problems() == []


@pytest.mark.parametrize(
    ("collation", "one", "other", "alike"),
    [
        ("utf8mb4_0900_ai_ci", "José", "jose", True),
        ("utf8mb4_0900_as_ci", "José", "josé", True),
        ("utf8mb4_0900_as_ci", "José", "Jose", False),
        ("utf8mb4_0900_ai_ci", "ann ", "ann", False),
        ("utf8mb4_0900_as_cs", "Ann", "ann", False),
        ("utf8mb4_general_ci", "Ännchen  ", "annchen", True),
        ("utf8mb4_uca1400_nopad_ai_ci", "É ", "e", False),
        ("utf8mb4_bin", "ann ", "ann", True),
        ("utf8mb4_bin", "Ann", "ann", False),
        ("utf8mb4_nopad_bin", "ann ", "ann", False),
        ("latin1_general_cs", "ann ", "ann", True),
    ],
)
def test_a_key_that_the_table_takes_for_the_same_is_named(
    staged: Staged, collation: str, one: str, other: str, alike: bool
) -> None:
    kind = ColumnType("varchar", length=20, charset="utf8mb4", collation=collation)
    columns = (Column("name", kind, False, 1), Column("part", ColumnType("int"), False, 2))
    people = TableSchema("shop", "people", (*columns, NOTE))
    made = [Change(people, "c", {"name": name, "part": 7, "note": "n"}) for name in (one, other)]
    staged.stage(40 * HOUR_US, Made(made, ts=40 * HOUR_US + 1))
    line, given = free(staged), json.dumps({"name": one, "part": 7})
    with raises(Refused, "stage.key", match="takes for the same") if alike else nullcontext():
        assert erase(line, given, table="shop.people", dry_run=True).places


def test_other_keys_are_named_as_a_command_line_takes_them(staged: Staged) -> None:
    text = ColumnType("varchar", length=60, charset="utf8mb4", collation="utf8mb4_bin")
    columns = (Column("name", text, False, 1), Column("part", ColumnType("int"), False, 2))
    people = TableSchema("shop", "people", (*columns, NOTE))
    names = ["Smith, Ann", 'O\'Brien "x"', "two words"]
    rows = [{"name": name, "part": at, "note": "n"} for at, name in enumerate(names)]
    changes = [Change(people, "c", rows[0]), *(Change(people, "u", now, was) for was, now in pairwise(rows))]
    staged.stage(40 * HOUR_US, *(Made([change], ts=40 * HOUR_US + 1) for change in changes))
    one, given = free(staged), [json.dumps({"name": names[1], "part": 1})]
    with raises(Refused, "stage.key") as caught:
        erase(one, *given, table="shop.people")
    options = shlex.split(caught.value.remedy.partition(": ")[2])
    assert options[::2] == ["--key"] * 2
    erase(one, *given, *options[1::2], table="shop.people")
    assert one.changes()["shop.people"] == []


def test_a_key_in_other_letters_than_its_rows_have_is_refused_with_theirs(staged: Staged) -> None:
    kind = ColumnType("varchar", length=20, charset="utf8mb4", collation="utf8mb4_general_ci")
    people = TableSchema("shop", "people", (Column("name", kind, False, 1), NOTE))
    staged.stage(40 * HOUR_US, Made([insert_row("ann", schema=people)], ts=40 * HOUR_US + 1))  # type: ignore[arg-type]
    one = free(staged)
    for dry_run in (True, False):
        with raises(UsageError, "usage.unknown_name", match="name=ANN") as caught:
            erase(one, "name=ANN", table="shop.people", dry_run=dry_run)
        assert "--key name=ann" in caught.value.remedy
    assert erase(one, "name=ann", table="shop.people").places


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (("Smith, Zoe", "7"), ("varchar", "int")),
        (("CORP\\zoe,b", "7"), ("varchar", "int")),
        (("CORP\\zoe", "7"), ("varchar", "int")),
        (("CORP\\zoe",), ("varchar",)),
    ],
)
def test_values_go_from_errors_as_keys_are_shown_there(values: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    columns = tuple(Column(f"c{at}", ColumnType(kind, length=20), False, at + 1) for at, kind in enumerate(kinds))
    row = pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names=[one.name for one in columns])
    (key,) = row_keys(row, row.schema.names).to_pylist()
    given = json.dumps(dict(zip(row.schema.names, values, strict=True)))
    keys = ErasedKeys("t", columns, texts_of([given], columns))
    facts = TableFacts("shop", "t", (), ())
    said = str(rejected(facts, key.encode(), OperationalError(1, "no"))) + str(key_collapse(facts, key.encode(), b""))
    assert all(value not in keys.without_values(said) for value in ("Smith", "CORP", "zoe", "Zoe"))


@pytest.mark.parametrize("failed", [True, False])
def test_a_run_whose_batches_others_have_committed_keeps_no_erasure_waiting_for_ever(
    staged: Staged, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, or failed: nobody can repeat a run of the command line, whose id is new each time."""
    line = staged.line
    line.plan("first")
    if failed:
        line.meta.runs.record_failure("first", "the target is away")
    one = free(staged)
    with raises(Refused, "stage.not_committed", match="run first"):
        erase(replace(one, line=line.with_targets({"name": "t"})), "id=1")
    line.done("second")
    if not failed:  # it may be in the middle of a task
        with raises(Refused, "stage.not_committed", match="run first"):
            erase(one, "id=1")
        monkeypatch.setattr(erasable, "REMOVED_AFTER_US", -1)  # it is over
    assert erase(one, "id=1").places


def test_a_replay_whose_batches_nobody_takes_over_counts_longer(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = free(staged)
    monkeypatch.setattr(erasable, "REMOVED_AFTER_US", -1)
    one.line.meta.runs.claim(PlannedRun("r", "line", None, "runs/r/p/plan.json", "0", replays=True), ())
    one.line.store.put("runs/r/p/plan.json", b'{"pipeline": "line", "replay": true}')
    with raises(Refused, "stage.not_committed", match="run r"):
        erase(one, "id=1")
    one.line.store.put("runs/r/p/plan.json", b'{"pipeline": "line", "replay": false}')
    assert erase(one, "id=1").places


def test_files_that_a_killed_purge_has_left_are_gone_after_an_erasure(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lives(staged)
    compacted(one)
    with monkeypatch.context() as patched:
        patched.setattr(retention, "_delete_before", DyingStore(None, 0).around(retention._delete_before))
        with pytest.raises(Killed):
            retention.purge(opened_line(one.line), cutoff_us=1 << 60)
    assert canaries(one)
    with raises(UsageError, "usage.unknown_name"):
        erase(one, "id=9")
    assert canaries(one) == []
    assert len(one.paths("manifests/")) == 1


def test_nothing_is_left_of_an_interrupted_verification_of_a_former_target(staged: Staged) -> None:
    one = lives(staged)
    with verifier_lease(opened_line(one.line), "former") as lease:
        one.line.meta.verifications.keep_progress(lease, "former", '{"first": "canary"}')
    erase(one, "id=9")
    assert [known.progress for known in one.line.meta.verifications.all()] == [""]


def test_half_a_file_of_a_run_that_was_killed_goes_and_the_whole_ones_of_other_rows_stay(staged: Staged) -> None:
    one, store = lives(staged), staged.line.store
    folder = "runs/killed/plan/merged/set=1/cdc_table=shop.orders"
    whole = io.BytesIO()
    pq.write_table(pa.table({"id": [5], "note": ["n"]}), whole)
    store.put(f"{folder}/part-1.parquet", whole.getvalue())
    store.put(f"{folder}/part-2.parquet", b"PAR1 canary")
    assert ("run", 0) in [(place.kind, place.rows) for place in erase(one, "id=9", dry_run=True).places]
    erase(one, "id=9")
    assert canaries(one) == []
    assert one.paths("runs/") == [f"{folder}/part-1.parquet"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_whatever_ends_an_erasure_before_it_changes_anything_no_run_waits_for_it(
    staged: Staged, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lives(staged)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(forgetting, "find_places", fail)
    with pytest.raises(error):
        erase(one, "id=9")
    assert list(erasures.unended(one.line.store)) == []
    assert one.line.meta.failures.find() == ()


def test_an_erasure_of_the_same_values_in_another_table_does_not_end_one_as_whole(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = free(staged)
    with monkeypatch.context() as patched:
        patched.setattr(Batches, "renew", DyingStore(None, 0).around(Batches.renew))
        with pytest.raises(Killed):
            erase(one, table="shop.items", where="id = 1")
    erase(one, "id=1")
    records = [erasures.read(one.line.store, Path(path).stem, ended=True) for path in one.paths("erased/")]
    assert {record.table: record.whole for record in records if record} == {"shop.items": False, ORDERS: True}


def test_nothing_is_left_of_what_was_read_ahead_or_of_documents_that_were_half_written(staged: Staged) -> None:
    lease = staged.line.leases["shop"]
    staged.line.meta.positions.keep_read_ahead(lease, "c4n4ry")
    one = lives(staged)
    for folder in ("manifests/shop", "erasures"):
        (one.root / "stage" / folder).mkdir(exist_ok=True)
        (one.root / "stage" / folder / ".tmp-1").write_text("canary")
    erase(one, "id=9")
    assert one.line.meta.positions.read_ahead("shop") == ""
    assert canaries(one) == []


@pytest.mark.parametrize(
    ("kind", "values", "others"),
    [
        ("int", ("0", "-7", "42"), ("007", "+7", "7.0", "-0", "7 ", "seven", "")),
        ("decimal", ("1.50", "-0.5", "7"), ("1,5", "abc", "0x7", "")),
        ("date", ("2024-01-05", "2024-02-31"), ("2024-1-5", "5.1.2024", "2024-01-05 00:00:00", "abc")),
        ("datetime", ("2024-01-05 10:00:00", "2024-01-05 10:00:00.500"), ("2024-01-05", "2024-01-05T10:00:00")),
        ("time", ("10:00:00", "-838:59:59"), ("10:00", "1:00:00")),
        ("varbinary", ("00ff", "00FF", ""), ("0xff", "f", "zz")),
        ("year", ("2024",), ("24x", "'24")),
        ("varchar", ("", "7 ", "a=b"), ()),
    ],
)
def test_a_value_that_no_row_can_have_is_no_key(kind: str, values: tuple[str, ...], others: tuple[str, ...]) -> None:
    """It is the caller's mistake, and none of Lockstep's: no server is asked for it."""
    columns = (Column("k", ColumnType(kind, precision=9, scale=2, length=9), False, 1),)
    assert len(texts_of([f"k={value}" for value in values], columns)) == len({value.upper() for value in values})
    for value in others:
        with raises(UsageError, "usage.argument"):
            texts_of([f"k={value}"], columns)
