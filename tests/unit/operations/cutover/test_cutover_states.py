"""The table of a cutover's moves."""

from __future__ import annotations

from cdc_core.operations.cutover.cutover_states import HELD, MOVES, OPEN, State


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(MOVES) == set(State)
    reached = {State.PREPARED}
    while True:
        more = reached | {goal for state in reached for goal in MOVES[state]}
        if more == reached:
            break
        reached = more
    assert reached == set(State)


def test_before_the_hook_every_state_leads_back_and_after_it_none_does() -> None:
    before = {State.PREPARED, State.CHASE, *HELD}
    assert all(State.ROLLED_BACK in MOVES[state] for state in before)
    assert all(State.CHASE in MOVES[state] for state in HELD)
    for state in (State.SWITCHED, State.WATCH, State.COMPLETE, State.BACK):
        assert not MOVES[state] & {*before, State.ROLLED_BACK}


def test_a_cutover_that_can_move_is_open() -> None:
    assert frozenset(State) - {State.COMPLETE, State.BACK, State.ROLLED_BACK} == OPEN
