"""A verification goes range by range: each is judged alone, continued after a kill, waits as a copy does; and the cheap
modes never pass for a proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from cdc_core.errors import RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.verifications import Verifications
from cdc_core.operations.copy import chunks, read_source
from cdc_core.operations.open_pipeline import Progress
from cdc_core.operations.status_report import verification_documents
from cdc_core.operations.verify import evidence, verify_progress
from cdc_core.operations.verify import table as tables
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.comparison import DifferenceKind
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.range_rows import RangeRows
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.verifier import verify
from cdc_core.operations.verify.verify_job import VerifyJob, verifier_lease
from cdc_core.operations.verify.verify_progress import VerifyProgress
from cdc_core.stage.stores import open_stage
from examples.sandbox.mysql import MySql
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL
from tests.lab.copying import at_source
from tests.lab.opened import Noted
from tests.lab.refusals import raises
from tests.lab.verified import Verified

ROWS = 7
"""Of a range."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: ROWS)


FROM_THE_START = 1 << 62
"""No verification was begun after it."""


class Killed(BaseException):
    """As a process that ends at this moment: nothing catches it."""


@contextmanager
def begun(run: Verified, **options: Any) -> Iterator[tuple[VerifyJob, list[str]]]:
    """A job with a lease, and what it says."""
    progress = Noted()
    ready = replace(run.opened, progress=progress)
    with verifier_lease(ready, "copy") as lease:
        yield replace(run.job(lease=lease, **options), opened=ready), progress.notes


def killed_after(run: Verified, ranges: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    with begun(run, **options) as (job, _), monkeypatch.context() as patched:
        keep, left = Verifications.keep_progress, [ranges]

        def kept(self: Meta, *given: Any) -> None:
            keep(self, *given)
            left[0] -= 1
            if not left[0]:
                raise Killed

        patched.setattr(Verifications, "keep_progress", kept)
        with pytest.raises(Killed):
            verify(job)


def read_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the source that are read from now on."""
    found: list[str] = []
    add = RangeRows.add

    def added(self: RangeRows, side: str, piece: ColumnPiece, places: Any) -> None:
        found.extend(piece.keys.to_pylist() if side == "source" else [])
        add(self, side, piece, places)

    monkeypatch.setattr(RangeRows, "add", added)
    return found


@FIRST_MARIADB
def test_each_range_is_read_once_and_all_of_them_are_the_table(shop: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.target("DELETE FROM number WHERE id IN (6, 39)", "INSERT INTO number VALUES (-5, 'x', NULL), (99, 'x', NULL)")
    read = read_keys(monkeypatch)
    monkeypatch.setattr(tables, "SHOWN_ROWS", 1)
    result = shop.verify("number")["number"]
    assert sorted(map(int, read)) == list(range(40))
    assert (result.ranges, result.source_rows, result.target_rows) == (6, 40, 40)
    assert [(finding.kind, finding.key["id"]) for finding in result.findings] == [
        (DifferenceKind.SURPLUS, "-5"), (DifferenceKind.MISSING, "6"), (DifferenceKind.MISSING, "39"),
        (DifferenceKind.SURPLUS, "99"),
    ]  # fmt: skip
    assert [len(finding.shards) for finding in result.findings] == [1, 0, 0, 0], "more are named than are shown"
    monkeypatch.setattr(verify_progress, "KEPT_BYTES", 200)
    result = shop.verify("number")["number"]
    assert ([finding.key["id"] for finding in result.findings], result.differences) == (["-5", "6"], 4)


@FIRST_MYSQL
def test_killed_it_continues_after_the_last_range_and_keeps_what_it_had_found(
    shop: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values are those of the end."""
    shop.target("UPDATE number SET v = 'fault' WHERE id IN (3, 5, 30)", "DELETE FROM number WHERE id = 6")
    whole = shop.verify("number")["number"]
    killed_after(shop, 3, monkeypatch)
    shop.target("UPDATE number SET v = 'v5' WHERE id = 5", "UPDATE number SET v = 'fault, too' WHERE id = 3")
    read = read_keys(monkeypatch)
    with begun(shop) as (job, said):
        found = verify(job)
        evidence.keep(job, found)
    assert sorted(map(int, read)) == sorted([*range(21, 40), 3, 5, 6, 30]), "of the rest, what is shown"
    assert any("continues after 21 verified rows" in line for line in said)
    (result,) = found.results
    assert [(finding.key["id"], finding.columns.get("v")) for finding in result.findings] == [
        ("3", ("v3", "fault, too")), ("5", None), ("6", None), ("30", ("v30", "fault")),
    ]  # fmt: skip
    assert (result.source_rows, result.target_rows, result.found) == (40, 39, {"target": 4}) == (
        whole.source_rows, whole.target_rows, whole.found,
    )  # fmt: skip
    verification = shop.meta.verifications.find("copy")
    assert verification is not None
    assert (verification.progress, verification.evidence["ordered"]["differences"]) == ("", 4)


@FIRST_MARIADB
def test_continued_after_a_repair_it_does_not_count_the_rows_that_were_repaired(
    shop: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.target("UPDATE number SET v = 'fault' WHERE id = 3")
    with begun(shop) as (job, _):
        evidence.keep(job, verify(job))
    killed_after(shop, 3, monkeypatch)
    assert shop("repair", "--dry-run").code == 0
    assert tallied(shop) == {"number": {"target": 1}}
    shop.ok("repair")
    assert tallied(shop) == {}
    with begun(shop) as (job, said):
        (result,) = verify(job).results
    assert (result.equal, result.source_rows) == (True, 40)
    assert any("continues" in line for line in said), "tables that agree so far would"


def tallied(run: Verified) -> dict[str, Any]:
    verification = run.meta.verifications.find("copy")
    assert verification is not None
    progress = VerifyProgress.from_text(verification.progress)
    assert progress is not None
    return {name: dict(table.found) for name, table in progress.tables.items()}


@pytest.mark.matrix
@FIRST_MARIADB
def test_what_was_verified_under_other_definitions_or_too_long_ago_is_verified_again_and_says_so(
    shop: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    def continued(**options: Any) -> tuple[int, str]:
        read = read_keys(monkeypatch)
        with begun(shop, **options) as (job, said):
            verify(job)
        return len(read), " ".join(said)

    killed_after(shop, 2, monkeypatch)
    assert continued()[0] == 40 - 14
    killed_after(shop, 2, monkeypatch, begun_after_us=FROM_THE_START)
    rows, said = continued(begun_after_us=FROM_THE_START)
    assert rows == 40
    assert "--restart" in said
    killed_after(shop, 2, monkeypatch, begun_after_us=FROM_THE_START)
    rows, said = continued(mode=Mode.RANDOM, sample_percent=100.0)
    assert rows == 40
    assert "the mode" in said
    killed_after(shop, 2, monkeypatch)
    shop.source("ALTER TABLE number ADD COLUMN extra INT")
    shop.target("ALTER TABLE number ADD COLUMN extra INT")
    rows, said = continued()
    assert rows == 40
    assert "number begins from the start" in said
    killed_after(shop, 2, monkeypatch, begun_after_us=FROM_THE_START)
    now = Meta.now_us
    monkeypatch.setattr(Meta, "now_us", lambda self: now(self) + 25 * 3600 * 1_000_000)
    rows, said = continued()
    assert rows == 40
    assert "more than 24h ago" in said


@pytest.mark.parametrize("any_server", ["mariadb"], indirect=True)
def test_what_was_verified_at_another_server_is_verified_again(
    shop: Verified, mysql9: MySql, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(shop, 2, monkeypatch)
    with closing(mysql9.connect(autocommit=True)) as there, there.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {shop.place}")
        cursor.execute(
            f"CREATE TABLE {shop.place}.number "
            "(id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, at DATETIME)"
        )
        cursor.executemany(
            f"INSERT INTO {shop.place}.number VALUES (%s, %s, %s)", [row for row in at_source(shop, "number") if row[0]]
        )
        shop.environ["TARGET"] = mysql9.url
        try:
            with begun(shop) as (job, said):
                (result,) = verify(job).results
        finally:
            cursor.execute(f"DROP DATABASE {shop.place}")
    assert [(finding.kind, finding.key["id"]) for finding in result.findings] == [(DifferenceKind.MISSING, "0")]
    assert (result.source_rows, result.target_rows) == (40, 39)
    assert any("number begins from the start" in line for line in said)


@FIRST_MYSQL
def test_a_verifier_that_has_lost_its_lease_moves_nothing(shop: Verified) -> None:
    with begun(shop) as (job, _):
        assert job.lease is not None
        job.meta.leases.release(job.lease)
        with verifier_lease(job.opened, "copy"), raises(RetryLater, "lease.lost"):
            verify(job)
        assert job.meta.verifications.find("copy") is None


@FIRST_MYSQL
def test_it_waits_while_a_copy_would_have_to_and_ends_while_copies_are_paused(
    shop: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = f"SELECT COUNT(*) FROM {shop.origin.name}.busy"
    shop.source("CREATE TABLE busy (id INT PRIMARY KEY)", "INSERT INTO busy VALUES (1)")
    monkeypatch.setattr(read_source, "WAIT_S", 0.01)
    shop.change(snapshot={"throttle": {"query": busy}})
    waits: list[str] = []

    class Eased(Progress):
        def note(self, text: str) -> None:
            if "the query of snapshot.throttle returns 1" in text:
                waits.append(text)
                shop.source("DELETE FROM busy")

    with begun(shop) as (job, _):
        found = verify(replace(job, opened=replace(job.opened, progress=Eased())), ["number"])
        assert found.results[0].equal
        assert waits
        job.meta.copies.pause("shop", "me")
        with raises(RetryLater, "snapshot.paused"):
            verify(replace(job, begun_after_us=FROM_THE_START), ["number"])


@FIRST_MARIADB
def test_several_tables_that_feed_one_are_cut_by_one_after_the_other(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = verified()
    run.joined(range(0, 60, 3), range(31, 100, 3))
    read = read_keys(monkeypatch)
    result = run.verify("all")["all"]
    assert result.equal
    assert result.ranges > 4
    assert sorted(map(int, read)) == sorted([*range(0, 60, 3), *range(31, 100, 3)])
    run.target("DELETE FROM `all` WHERE id IN (0, 31, 57, 97)", "INSERT INTO `all` VALUES (1000, '', NULL)")
    found = run.verify("all")["all"]
    assert sorted(int(str(finding.key["id"])) for finding in found.findings) == [0, 31, 57, 97, 1000]


@FIRST_MARIADB
def test_keys_that_the_sides_order_differently_are_verified_in_one_range(verified: Callable[..., Verified]) -> None:
    run = verified()
    names = [f"{letter}{n}" for n in range(10) for letter in "aBcDé"]
    run.source(
        "CREATE TABLE number (name VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
        *(f"INSERT INTO number VALUES ('{name}', 1)" for name in names),
    )
    run.extract()
    run.target(
        "CREATE TABLE number (name VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
        f"INSERT INTO number SELECT * FROM {run.origin.name}.number",
    )
    run.consumed()
    result = run.verify("number")["number"]
    assert (result.error, result.equal, result.ranges) == (None, True, 1)
    assert "may order the column name differently" in result.whole


@pytest.mark.matrix
@FIRST_MYSQL
def test_a_sample_sees_a_share_and_never_passes_for_a_proof(shop: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SAMPLED_ROWS", ROWS)
    shop.fill(range(100, 200))
    shop.load("number")

    def sample(seed: int) -> tuple[TableResult, list[str]]:
        read = read_keys(monkeypatch)
        with begun(shop, mode=Mode.RANDOM, sample_percent=30.0, seed=seed) as (job, _):
            (result,) = verify(job, ["number"]).results
            evidence.keep(job, verify(replace(job, begun_after_us=FROM_THE_START), ["number"]))
            document = evidence.read(job.opened.store, evidence.outstanding(job.opened.store, "copy")[0][0])
        assert (document["mode"], document["seed"]) == ("random", seed)
        assert document["equal"] is (None if result.agrees else False)
        return result, sorted(read[: result.source_rows])

    (one, keys), (again, same), (_, others) = sample(1), sample(1), sample(2)
    assert keys == same
    assert keys != others
    assert (one.agrees, one.equal, one.differences) == (True, False, 0)
    assert 0.1 < one.source_rows / 140 < 0.6
    assert abs(one.source_rows + one.skipped_rows - 140) <= ROWS
    assert again.source_rows == one.source_rows
    shop.target(f"UPDATE number SET v = 'fault' WHERE id = {keys[0]}")
    assert sample(1)[0].found == {Wrong.TARGET: 1}


@FIRST_MARIADB
def test_counts_and_greatest_keys_are_judged_as_of_places_and_are_no_proof(shop: Verified) -> None:
    def seen(mode: Mode) -> tuple[bool, bool, int, int]:
        result = shop.verify("number", mode=mode)["number"]
        assert result.error is None
        return result.agrees, result.equal, result.differences, result.moving

    for mode in (Mode.COUNT, Mode.MAX_ID):
        assert seen(mode) == (True, False, 0, 0)
    shop.source(
        "INSERT INTO number VALUES (500, 'later', NULL), (501, 'later', NULL)", "DELETE FROM number WHERE id = 1"
    )
    for mode in (Mode.COUNT, Mode.MAX_ID):
        assert seen(mode) == (True, False, 0, 1), "a lag is not a difference"
    shop.target("INSERT INTO number VALUES (500, 'later', NULL), (501, 'later', NULL)")
    assert seen(Mode.COUNT) == (True, False, 0, 1), "a batch may be there in part"
    shop.target("DELETE FROM number WHERE id IN (7, 8, 9, 10, 11)")
    for mode in (Mode.COUNT, Mode.MAX_ID):
        assert seen(mode)[2] > 0
    shop.load("number")
    assert seen(Mode.MAX_ID) == (True, False, 0, 0)
    shop.target("UPDATE number SET id = 600 WHERE id = 501")
    assert seen(Mode.COUNT) == (True, False, 0, 0), "which is why it proves nothing"
    assert seen(Mode.MAX_ID) == (False, False, 1, 0)


@FIRST_MYSQL
def test_what_cannot_be_counted_or_sampled_is_refused(verified: Callable[..., Verified]) -> None:
    run = verified("no_key: rows", tables="rows: [{match: '.*[.]filtered', where: 'id < 3'}]")
    run.numbers(5, key="")
    run.numbers(5, table="filtered")
    codes = {
        mode: {name: result.error.code if result.error else "" for name, result in run.verify(mode=mode).items()}
        for mode in (Mode.COUNT, Mode.MAX_ID, Mode.RANDOM)
    }
    assert codes == {
        Mode.COUNT: {"number": "", "filtered": "verify.mode"},
        Mode.MAX_ID: {"number": "verify.mode", "filtered": "verify.mode"},
        Mode.RANDOM: {"number": "verify.mode", "filtered": ""},
    }


@FIRST_MYSQL
@pytest.mark.parametrize(("shared_keys", "rows", "code"), [("stop", 6, ""), ("newest", 3, "verify.mode")])
def test_rows_of_several_tables_are_counted_unless_some_of_them_may_count_as_one(
    verified: Callable[..., Verified], shared_keys: str, rows: int, code: str
) -> None:
    run = verified(f"shared_keys: {shared_keys}")
    for name, first in (("all_a", 0), ("all_b", rows - 3)):
        run.source(
            f"CREATE TABLE {name} (id INT PRIMARY KEY)",
            f"INSERT INTO {name} VALUES ({first}), ({first + 1}), ({first + 2})",
        )
    run.extract()
    run.target("CREATE TABLE `all` (id INT PRIMARY KEY)")
    run.target(f"INSERT INTO `all` VALUES {', '.join(f'({number})' for number in range(rows))}")
    run.consumed()
    found = run.verify("all", mode=Mode.COUNT)["all"]
    assert (found.error.code if found.error else "", found.differences) == (code, 0)
    assert run.verify("all")["all"].equal


@FIRST_MARIADB
def test_what_a_verification_has_found_counts_until_another_has_compared_those_rows(
    verified: Callable[..., Verified],
) -> None:
    """A sample, a count, and a verification of another table say nothing of them."""
    run = verified()
    for table in ("number", "other"):
        run.numbers(table=table)
    run.target("UPDATE number SET v = 'fault' WHERE id = 3", "DELETE FROM other WHERE id IN (4, 5)")

    def finish(*tables: str, **options: Any) -> None:
        with begun(run, **options) as (job, _):
            evidence.keep(job, verify(job, tables))

    def outstanding() -> tuple[list[tuple[str, str]], dict[str, int], str]:
        paths, document = evidence.outstanding(open_stage(run.pipeline.stage), "copy")
        found = [
            (table["table"], finding["key"]["id"]) for table in document["tables"] for finding in table["findings"]
        ]
        assert len(paths) == len(set(paths))
        (status,) = run.meta.status.find(["copy"]).verifications
        newest = verification_documents(status, run.meta.now_us())[0]
        return sorted(set(found)), newest["differing"], newest["verdict"]

    finish()
    everything = [("number", "3"), ("other", "4"), ("other", "5")]
    assert outstanding() == (everything, {"number": 1, "other": 2}, "3 differences")
    run.target("UPDATE number SET v = 'other fault' WHERE id = 3")
    finish(mode=Mode.RANDOM, sample_percent=0.001)  # no range is chosen: the last one is read
    found, differing, verdict = outstanding()
    assert (found, differing) == (everything, {"number": 1, "other": 2})
    assert verdict == "nothing found in a sample; 3 with those of earlier verifications, in number, other"
    finish("other")
    assert outstanding()[0] == everything
    finish(mode=Mode.COUNT)
    run.source("UPDATE number SET v = 'again' WHERE id = 3")
    run.load("number")
    assert outstanding()[:2] == (everything, {"number": 1, "other": 2})
    finish("number")
    assert outstanding() == (
        [("other", "4"), ("other", "5")], {"other": 2}, "equal; 2 with those of earlier verifications, in other",
    )  # fmt: skip
    run.load("other")
    finish()
    assert outstanding() == ([], {}, "equal")
