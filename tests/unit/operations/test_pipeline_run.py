"""`lockstep run`: a run whose batches others take over starts no job."""

from __future__ import annotations

from cdc_core.operations.pipeline_run import carry_out, fresh_run_id
from spark_jobs.driver import Driver
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.opened import Noted, opened


def test_a_run_whose_batches_another_took_over_starts_nothing_and_says_who_has_them(line: Line) -> None:
    line.stage(manifest(0))
    lost = line.plan("first")
    heir = line.plan("second")
    environ = {"SHOP": "mysql://u@127.0.0.1:1", "T": "mysql://u@127.0.0.1:2"}
    progress = Noted()
    with Driver(line.pipeline, line.store, master="local[1]") as spark:
        done = carry_out(opened(line.pipeline, line.meta, environ, progress), spark, lost)
    assert (progress.steps, done.summaries, done.ledgers) == ([], (), ())
    assert len(done.lost) == 1
    assert "second took over" in done.lost[0]
    line.apply(heir)
    assert line.commit(heir).moved == 1


def test_runs_that_begin_in_one_second_have_different_ids_whatever_their_process_ids_are() -> None:
    """Those of two containers may both be 1."""
    ids = {fresh_run_id("shop", "cli") for _ in range(100)}
    assert len(ids) == 100
    assert all(run_id.startswith("shop-cli-20") for run_id in ids)
