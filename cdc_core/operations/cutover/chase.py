"""Runs and comparisons while the application writes, until little is left for the time without writes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from cdc_core.errors import NotCaughtUp, RetryLater
from cdc_core.operations.cutover.catching_up import catch_up
from cdc_core.operations.cutover.moving import Moving
from cdc_core.operations.cutover.proof import Prover, Since
from cdc_core.operations.cutover.undoing import unless_it_fails
from cdc_core.operations.cutover.work import CutoverWork

QUICK_RUNS = 3


_ROUNDS = 5
"""How often changed keys are compared, at most, until a comparison is quick."""


def chase(moving: Moving, provers: Sequence[Prover], since: Mapping[str, Since], end_s: float) -> dict[str, Since]:
    """Until runs are quick; then the keys that changed since the verification are compared, so that few are left.
    end_s: by time.monotonic, when that is given up. Raises RetryLater (cutover.too_slow), and what runs and
    comparisons raise."""
    work, quick = moving.work, 0
    while quick < QUICK_RUNS:
        took_s = _caught_up(work, end_s)
        quick = quick + 1 if took_s <= work.options.max_lag_s else 0
        if quick < QUICK_RUNS and time.monotonic() >= end_s:
            raise _too_slow(work, f"the last one took {took_s:.1f} s")
    unless_it_fails(work, "what the last run needs could not be loaded beforehand", work.spark.load, None)
    found = dict(since)
    for _ in range(_ROUNDS):
        began_s = time.monotonic()
        for target, prover in zip(work.targets, provers, strict=True):
            proof = prover.prove(found[target.name], still=False)
            unclear = f"; {proof.unsettled:,} are not settled" if proof.unsettled else ""
            keys = sum(proof.keys.values())
            work.opened.progress.note(f"{target.name}: {keys:,} keys that changed were compared{unclear}")
            found[target.name] = proof.since
        took_s = time.monotonic() - began_s
        _caught_up(work, end_s)  # while keys were compared, others have changed: the stop is to find few of them
        if took_s <= work.options.max_lag_s:
            break
    return found


def _caught_up(work: CutoverWork, end_s: float) -> float:
    """A run, tried until it succeeds; the seconds it took, inf for one that had to be tried again. Raises RetryLater
    (cutover.too_slow)."""
    tried_again = False
    while True:
        try:
            done = catch_up(work)
        except RetryLater as error:
            if time.monotonic() >= end_s:
                raise _too_slow(work, f"the last one ended with: {error}") from error
            work.opened.progress.note(f"tried again: {error}")
            time.sleep(1)
            tried_again = True
            continue
        work.opened.progress.note(f"a run of {done.staged:,} changes took {done.took_s:.1f} s")
        return math.inf if tried_again else done.took_s


def _too_slow(work: CutoverWork, last: str) -> RetryLater:
    return NotCaughtUp(
        f"Within {work.options.chase} (cutover.chase), no {QUICK_RUNS} runs in a row took less than "
        f"{work.options.max_lag_s:g} s (cutover.max_lag_s): {last}.",
        where=work.opened.name,
        remedy="find what the runs wait for, begin at a quieter time, or raise cutover.max_lag_s",
    )
