"""The transition tables of consume records and runs."""

from __future__ import annotations

import itertools

from cdc_core.meta.run_states import RECORD_MOVES, RUN_MOVES, RecordState, RunState, run_may_move


def test_a_record_goes_forward_one_step_at_a_time_and_ends_purged() -> None:
    path = [RecordState.STAGED]
    while (following := RECORD_MOVES[path[-1]]) is not None:
        path.append(following)
    assert path == [RecordState.STAGED, RecordState.APPLIED, RecordState.COMMITTED, RecordState.PURGED]
    assert set(RECORD_MOVES) == set(RecordState)


def test_a_committed_run_does_not_fail_any_more() -> None:
    assert set(RUN_MOVES) == set(RunState)
    allowed = {(a, b) for a, b in itertools.product(RunState, repeat=2) if run_may_move(a, b)}
    assert (RunState.COMMITTED, RunState.FAILED) not in allowed
    assert (RunState.FAILED, RunState.PLANNED) in allowed
