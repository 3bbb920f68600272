"""What a target has lost that closed ledgers count: noticed before a run and by every commit, until a replay made after
the loss has brought it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdc_core.config import ONE_TABLE, Pipeline
from cdc_core.errors import DataAtRisk
from cdc_core.meta import Meta
from cdc_core.meta.meta_rows import PlannedRun
from cdc_core.meta.run_register import RunRegister
from cdc_core.meta.target_writes import TargetWrites
from cdc_core.model.run_plan import LedgerEntry, MergeSet, MergeTable, PlannedFile, RunPlan, TargetRun, WriteCounts
from cdc_core.operations.apply import lost_writes
from cdc_core.stage.stores import open_store
from cdc_core.targets.reading.table_facts import TableFacts, table_facts
from cdc_core.targets.writing.prepare import prepare
from cdc_core.targets.writing.row_writer import note
from cdc_core.targets.writing.shard_write import ShardWrite, WritePart
from tests.lab.databases import own_database
from tests.lab.opened import opened, opened_line
from tests.lab.pipeline_file import made_pipeline, target
from tests.lab.refusals import refusal
from tests.lab.shell import export

TABLES = ("a", "b")
IN_PART = "in part"
MARK = "2026-01-02 03:04:05.000006"


@dataclass
class Written:
    """A target's database with two tables, a meta database, and the transactions that the server has had."""

    server: Any
    name: str
    pipeline: Pipeline
    meta: Meta
    folder: Path
    runs: int = 0
    history: list[tuple[str, str]] = field(default_factory=list)
    """(run, table) of the transactions that the server has, in the order of their commits; of a part that others
    follow, (run, IN_PART)."""
    ledgers: list[list[Any]] = field(default_factory=list)
    """What the server's ledger was before each of them."""

    def query(self, sql: str, *arguments: Any) -> list[Any]:
        with self.server.connect(self.name, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall() or ())

    def plan(self, *tables: str, replay: bool = False, batches: tuple[int, ...] = ()) -> RunPlan:
        self.runs += 1
        run_id = f"{'replay' if replay else 'run'}{self.runs:03d}"
        ids = batches or (self.runs,)
        files = tuple(PlannedFile(f"p{n}", 1, "s", f"one/{n:04d}", 1, 1, "x", 1) for n in ids)
        merged = MergeSet("0", tuple(MergeTable(table, ("id",), files) for table in tables))
        taken = TargetRun("copy", "0", tuple(file.batch_id for file in files))
        made = RunPlan(run_id, "shop", self.pipeline.stage.uri, 0, 1, (merged,), (taken,), {}, replay=replay)
        self.meta.runs.claim(PlannedRun(run_id, "shop", None, "plan", "sha", replays=True), ())
        return made

    def write(self, plan: RunPlan, table: str, *, ledger: bool = True, part: WritePart | None = None) -> WriteCounts:
        facts = TableFacts(self.name, f"t{table}", (), ())
        write = ShardWrite(plan.run_id, table, facts, ONE_TABLE, ledger=ledger, part=part)
        self.ledgers.append(self.query("SELECT * FROM _lockstep_ledger"))
        with self.server.connect(self.name) as connection, connection.cursor() as cursor:
            counts = note(cursor, write, counts_of(self, table))
            connection.commit()
        self.history.append((plan.run_id, IN_PART if part and part.more else table))
        return counts

    def write_in_parts(self, plan: RunPlan, table: str, several: int, *, killed: bool = False) -> WriteCounts:
        """killed: before the last part."""
        so_far: WriteCounts | None = None
        for number in range(several):
            counts = self.write(plan, table, part=WritePart(killed or number < several - 1, MARK, so_far))
            so_far = replace(counts, written=number + 1)
        assert so_far is not None
        return so_far

    def find(self) -> tuple[lost_writes.LostWrites, ...]:
        return lost_writes.find(opened_line(self), self.pipeline.target("copy"))

    def commit(self, plan: RunPlan, written: list[WriteCounts]) -> None:
        """As apply.commit does it."""
        lost_writes.require_own(opened_line(self), plan, "copy", written)
        lost = self.find()
        if lost and not plan.replay:
            raise lost_writes.refusal(self.pipeline, "copy", lost)
        still_lost = lost_writes.still_lost(lost, plan)
        entries = [LedgerEntry(plan.run_id, "copy", counts.table, 1, 0, 1, 0, 1, 0, 0) for counts in written]
        self.meta.runs.commit(plan.run_id, "copy", (), entries, written, spans=plan.spans("copy"), lost=still_lost)

    def run(self, *tables: str) -> RunPlan:
        plan = self.plan(*tables)
        self.commit(plan, [self.write(plan, table) for table in tables])
        return plan

    def replay(self, *tables: str, batches: tuple[int, ...]) -> RunPlan:
        plan = self.restoring(self.plan(*tables, replay=True, batches=batches))
        self.commit(plan, [self.write(plan, table) for table in tables])
        return plan

    def restoring(self, plan: RunPlan) -> RunPlan:
        """As apply.replay plans it."""
        store = open_store(f"file://{self.folder}/stage")
        restores = lost_writes.restored_by(opened(self.pipeline, self.meta, store=store), plan, self.find())
        return RunPlan(**{name: getattr(plan, name) for name in RunPlan.__annotations__} | {"restores": restores})

    def fail_over(self, lost: int) -> None:
        """The server is another one now, which never had its last transactions."""
        if not lost:
            return
        at = len(self.history) - lost
        self.query("DELETE FROM _lockstep_ledger")
        for row in self.ledgers[at]:
            self.query(f"INSERT INTO _lockstep_ledger VALUES ({', '.join(['%s'] * len(row))})", *row)
        del self.history[at:], self.ledgers[at:]


def counts_of(line: Written, table: str) -> WriteCounts:
    return WriteCounts(table, f"{line.name}.t{table}", 1, 0, 0)


@pytest.fixture
def line(mariadb_target: Any, tmp_path: Path) -> Iterator[Written]:
    """One kind of server: the statements are the same for both, as the last test shows."""
    yield from line_at(mariadb_target, tmp_path)


def line_at(server: Any, folder: Path) -> Iterator[Written]:
    export({"TARGET": server.url})
    with own_database(server) as name:
        rules = {table: {"database": name, "table": f"t{table}"} for table in TABLES}
        pipeline = made_pipeline(folder, name, source="name: one", targets=[target("copy", "env:TARGET", rules)])
        server.run("CREATE TABLE ta (id INT PRIMARY KEY)", database=name)
        with server.connect(autocommit=True) as connection:
            prepare(connection, table_facts(connection, name, ["ta"])["ta"])
        with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
            yield Written(server, name, pipeline, meta, folder)


def test_a_run_asks_for_the_last_counted_write_of_each_table_and_names_the_replay(line: Written) -> None:
    first = line.run("a", "b")
    second = line.run("a")
    third = line.run("a")
    assert line.find() == ()
    line.fail_over(2)
    (lost,) = line.find()
    assert (lost.shard, lost.runs, lost.rows) == (f"{line.name}.ta", (second.run_id, third.run_id), 2)
    error = refusal(lambda: lost_writes.require_kept(opened_line(line), "copy"))
    assert isinstance(error, DataAtRisk)
    assert "--replay --target copy --from one/0002`" in error.remedy
    assert first.run_id not in str(error)
    line.replay("a", batches=(3,))  # not all of what is lost
    assert len(line.find()) == 1
    line.replay("b", batches=(2, 3))
    assert len(line.find()) == 1
    line.replay("a", batches=(2, 3))
    assert line.find() == ()
    line.run("a", "b")


def test_a_commit_refuses_what_was_lost_while_the_run_worked(line: Written) -> None:
    line.run("a")
    plan = line.plan("a", "b")
    counts = [line.write(plan, "a")]
    line.fail_over(1)
    counts.append(line.write(plan, "b"))
    assert "Clear the run from its filter task" in refusal(lambda: line.commit(plan, counts)).remedy
    line.commit(plan, [line.write(plan, "a"), counts[1]])
    assert line.find() == ()


def test_a_write_to_the_new_server_does_not_hide_what_the_old_one_had(line: Written) -> None:
    """The run was planned before the loss; its transaction takes the number of the one that is lost."""
    line.run("a")
    line.run("a")
    going_on = line.plan("a")
    line.fail_over(1)
    counts = [line.write(going_on, "a")]
    assert refusal(lambda: line.commit(going_on, counts)).code == "target.lost_writes"
    line.replay("a", batches=(2, 3))
    line.commit(going_on, counts)
    assert line.find() == ()


def test_a_replay_that_was_planned_before_the_loss_restores_nothing(line: Written) -> None:
    line.run("a")
    line.run("a")
    early = line.restoring(line.plan("a", replay=True, batches=(1, 2)))
    line.fail_over(1)
    line.commit(early, [line.write(early, "a")])
    assert len(line.find()) == 1


def test_a_database_without_any_ledger_row_needs_all_that_was_staged_or_an_operator(line: Written) -> None:
    line.run("a", "b")
    line.run("b")
    line.query("DROP TABLE _lockstep_ledger")
    error = refusal(lambda: lost_writes.require_kept(opened_line(line), "copy"))
    assert "--replay --target copy` (" in error.remedy
    assert "lockstep meta accept shop --target copy" in error.remedy
    assert {writes.table for writes in lost_writes.accept(opened_line(line), "copy")} == {"a", "b"}
    assert line.find() == ()
    assert lost_writes.accept(opened_line(line), "copy") == ()


def test_an_operator_accepts_no_loss_of_what_was_written_after_the_look(
    line: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.run("a")
    line.run("a")
    line.fail_over(1)
    accept = TargetWrites.accept

    def meanwhile(meta: Meta, *arguments: Any) -> None:
        line.replay("a", batches=(1, 2))
        line.run("a")
        accept(meta, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TargetWrites, "accept", meanwhile)
        lost_writes.accept(opened_line(line), "copy")
    assert line.find() == ()
    line.fail_over(1)
    assert len(line.find()) == 1


def test_a_replay_renews_nothing_that_was_written_after_it_has_looked(
    line: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.run("a")
    line.run("a")
    line.fail_over(1)
    slow = line.restoring(line.plan("a", replay=True, batches=(1, 2)))
    counts = [line.write(slow, "a")]
    commit_run = RunRegister.commit

    def meanwhile(meta: Meta, *arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(RunRegister, "commit", commit_run)
        line.replay("a", batches=(1, 2))
        line.run("a")
        return commit_run(meta, *arguments, **options)

    monkeypatch.setattr(RunRegister, "commit", meanwhile)
    line.commit(slow, counts)
    assert line.find() == ()
    line.fail_over(1)
    assert len(line.find()) == 1


def test_a_table_that_the_target_no_longer_takes_is_not_asked_for(line: Written) -> None:
    line.run("a", "b")
    line.fail_over(1)
    assert [writes.table for writes in line.find()] == ["b"]
    rules = {"a": line.pipeline.target("copy").tables["a"]}
    fewer = line.pipeline.target("copy").model_copy(update={"tables": rules})
    assert lost_writes.find(opened_line(line), fewer) == ()


def test_a_table_with_another_name_lacks_what_was_written_to_the_former_until_it_is_replayed(line: Written) -> None:
    """The pipeline file was edited between two runs, or between the tasks of one."""
    line.run("a", "b")
    under_way = line.plan("a")
    counts = [line.write(under_way, "a")]
    document = line.pipeline.model_dump(exclude_unset=True)
    document["targets"][0]["tables"]["a"]["table"] = "tc"
    former, line.pipeline = line.pipeline, Pipeline.model_validate(document)
    error = refusal(lambda: lost_writes.require_kept(opened_line(line), "copy"))
    assert error.code == "target.lost_writes"
    assert f"the tables that a has now lack, of {line.name}.ta, 1 row of run001" in error.what
    assert f"{line.name}.tb" not in error.what
    assert refusal(lambda: line.commit(under_way, counts)).code == "target.lost_writes"
    line.pipeline = former
    assert line.find() == ()
    line.commit(under_way, counts)
    line.pipeline = Pipeline.model_validate(document)
    assert [(writes.shard, writes.everything, writes.named) for writes in line.find()] == [
        (f"{line.name}.ta", True, False)
    ]
    target = line.pipeline.target("copy")
    lost_writes.accept_moved(line.meta, target, ["b"])
    assert len(line.find()) == 1
    lost_writes.accept_moved(line.meta, target, ["a", "b"])
    assert (line.find(), {table for table, due in line.meta.writes.last("copy").items() if due}) == ((), {"b"})


def test_a_write_of_a_second_pass_counts_too(line: Written) -> None:
    """Rows that leave a shard are removed in a transaction of their own, after the one that brings the others."""
    plan = line.plan("a")
    first = line.write(plan, "a")
    second = line.write(plan, "a", ledger=False)
    assert second.number > first.number
    assert line.query("SELECT written, number FROM _lockstep_ledger") == [(1, second.number)]
    line.commit(plan, [second])
    line.query("UPDATE _lockstep_ledger SET number = %s", first.number)
    assert [writes.runs for writes in line.find()] == [(plan.run_id,)]


def test_a_server_that_has_all_parts_but_the_last_has_lost_the_write(line: Written) -> None:
    first = line.run("a")
    plan = line.plan("a")
    line.commit(plan, [line.write_in_parts(plan, "a", 3)])
    assert line.find() == ()
    assert [row[3] for row in line.query("SELECT * FROM _lockstep_ledger ORDER BY number")] == [1, 3]
    line.fail_over(1)
    (lost,) = line.find()
    assert (lost.runs, lost.rows, lost.everything) == ((plan.run_id,), 3, False)
    line.write_in_parts(plan, "a", 2, killed=True)  # as many transactions as there were
    assert [writes.runs for writes in line.find()] == [(plan.run_id,)]
    line.write_in_parts(plan, "a", 3)
    assert line.find() == ()
    assert first.run_id in {row[0] for row in line.query("SELECT run_id FROM _lockstep_ledger")}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "parts", "killed"]), st.sampled_from(TABLES)),
        st.tuples(st.just("replay"), st.sampled_from(TABLES)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(1, 3)),
    ),
    max_size=14,
)
LAST_PART = [("write", "a"), ("commit", 0), ("parts", "a"), ("commit", 0), ("fail", 1), ("write", "a"), ("commit", 0)]
LAST_OF_ALL = [("write", "a"), ("commit", 0), ("write", "a"), ("write", "a"), ("commit", 1), ("commit", 0), ("fail", 2)]


@given(steps=STEPS)
@example(steps=LAST_OF_ALL)
@example(steps=LAST_PART)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_fails_between_whatever_writes_no_counted_transaction_is_missed(
    server: Any, steps: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for line in line_at(server, tmp_path_factory.mktemp("line")):
        open_: list[tuple[RunPlan, str, WriteCounts, frozenset[tuple[str, str]]]] = []
        counted: set[tuple[str, str]] = set()  # (run, table) that ledgers count and no replay has repeated
        for step, what in steps:
            gone = {pair for pair in counted if pair not in line.history}
            if step == "write":
                plan = line.plan(what)
                open_.append((plan, what, line.write(plan, what), frozenset()))
            elif step == "parts":
                plan = line.plan(what)
                open_.append((plan, what, line.write_in_parts(plan, what, 3), frozenset()))
            elif step == "killed":
                line.write_in_parts(line.plan(what), what, 2, killed=True)
            elif step == "replay":
                every = tuple(range(1, line.runs + 1))
                plan = line.restoring(line.plan(what, replay=True, batches=every))
                seen = frozenset(pair for pair in gone if pair[1] == what)
                open_.append((plan, what, line.write(plan, what), seen))
            elif step == "commit" and open_:
                plan, table, counts, seen = open_.pop(what % len(open_))
                try:
                    line.commit(plan, [counts])
                except DataAtRisk:
                    assert gone or (plan.run_id, table) not in line.history
                else:
                    assert (plan.run_id, table) in line.history
                    assert plan.replay or not gone
                    counted.add((plan.run_id, table))
                    if {pair for pair in gone if pair[1] == table} <= seen:
                        counted -= seen
            elif step == "fail":
                line.fail_over(min(what, len(line.history)))
            missing = {table for run_id, table in counted if (run_id, table) not in line.history}
            assert {writes.table for writes in line.find()} == missing, steps
