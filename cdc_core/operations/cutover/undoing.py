"""Frees what a cutover has stopped, fenced and gated.

What has the token of a cutover's process (`Moving.token`) is undone by whoever comes to it first: that process, or the
one that has the cutover now. Neither can undo what another process has made, however late it does so. It does
no harm to release the application late either: locks and gates of that process keep its writes out. The gates of the
tables that it leads to, which it had opened, are closed again by the process that has the cutover; by one that has lost
it only where another has rolled it back, since then nobody opens them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from cdc_core.config import MysqlTarget
from cdc_core.errors import LeaseLost, LockstepError, RetryLater
from cdc_core.meta import Cutover, Lease
from cdc_core.meta.task_failures import GATES
from cdc_core.operations.cutover import hooks
from cdc_core.operations.cutover.cutover_states import LED_AWAY, State
from cdc_core.operations.cutover.work import CutoverWork, Tables, read
from cdc_core.operations.verify.modes import DOUBT
from cdc_core.targets.bookkeeping.fence import admit
from cdc_core.targets.bookkeeping.gates import Places, close_gates, drop_gates, lost_gates, make_gates, open_gates

log = logging.getLogger(__name__)

T = TypeVar("T")
_NOTE = "switched by the cutover"
PATIENCE_S = 60.0
"""How long a server that does not answer is waited for, where something must be undone or written down."""


def patiently(step: Callable[[], T], told: Callable[[str], None], patience_s: float = PATIENCE_S) -> T:
    """The step, tried again for a while where that may help. Raises what its last try raises."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return step()
        except RetryLater as error:
            if isinstance(error, LeaseLost) or time.monotonic() >= end_s:
                raise
            told(f"tried again: {error}")
            time.sleep(1)


def open_made(work: CutoverWork, cutover: Cutover) -> None:
    """Opens the gates that have the cutover's token. Safe to repeat. Raises RetryLater (cutover.not_undone)."""
    token = cutover.details.get("arming")
    if token:
        tables = read(cutover.details["tables"])
        _insist(work, cutover, partial(open_gates, tables.sources, token=token))


def undo_made(work: CutoverWork, cutover: Cutover) -> None:
    """Lowers the fences and removes the pipeline that have the cutover's token. Safe to repeat, also after half of it
    was done. Raises RetryLater (cutover.not_undone)."""
    token = cutover.details.get("arming")
    if not token:
        return
    tables = read(cutover.details["tables"])
    _insist(work, cutover, partial(_disarmed, work, token))
    for target in work.targets:
        _insist(work, cutover, partial(_admitted, work, target, tables, note(cutover, token)))


def open_closed(work: CutoverWork, cutover: Cutover, token: str) -> None:
    """Opens the gates that this process has closed so far. Safe to repeat. Raises target_faults' errors."""
    if cutover.details.get("arming") == token:
        open_gates(read(cutover.details["tables"]).sources, token=token)


def undo_left(work: CutoverWork, cutover: Cutover) -> None:
    """Opens and lowers what processes have left that had lost the cutover before it was rolled back. Gates of a cutover
    that has led the application away from these tables since stay closed."""
    if "tables" in cutover.details:
        tables, others = read(cutover.details["tables"]), work.meta.cutovers.tokens(LED_AWAY)
        _insist(work, cutover, partial(open_gates, tables.sources, sparing=others))
        tidy(work, tables.sources)
        for target in work.targets:
            noted = f"{_NOTE} {cutover.cutover_id} "
            _insist(work, cutover, partial(_admitted, work, target, tables, noted))


def close_again(work: CutoverWork, cutover: Cutover, token: str) -> None:
    """Closes the gates of new tables that it had opened. token: of the process that does it. Safe to repeat. Raises
    RetryLater (cutover.not_undone)."""
    opened: Mapping[str, Any] = cutover.details.get("opened") or {}
    if any(opened.values()):
        places = read({**cutover.details["tables"], "targets": opened}).targets
        _insist(work, cutover, partial(close, work, places, token))


def release(work: CutoverWork, cutover: Cutover) -> None:
    """Tells the application that it may write, if it was told to stop. Safe to repeat. Raises RetryLater
    (cutover.not_undone)."""
    command = work.options.stop_with
    if command is not None:
        told = hook_variables(work, cutover, hooks.RELEASE)
        _insist(work, cutover, partial(hooks.stop, command, told, work.options.hook_s))


def _insist(work: CutoverWork, cutover: Cutover, step: Callable[[], None]) -> None:
    try:
        patiently(step, work.opened.progress.note)
    except RetryLater as error:
        raise RetryLater(
            f"The application was not switched, and the cutover could not undo everything: {error.what}",
            where=f"cutover {cutover.cutover_id}",
            code="cutover.not_undone",
            remedy=f"the old tables may refuse writes until you run `lockstep cutover abort {cutover.pipeline}` once "
            "the servers answer",
        ) from error


def _disarmed(work: CutoverWork, token: str) -> None:
    left = work.way_back.disarm(token)
    if left:
        work.opened.progress.note(left)


def _admitted(work: CutoverWork, target: MysqlTarget, tables: Tables, noted: str) -> None:
    admit(target, fenced_in(target, tables), work.opened.name, work.pair, noted=noted)


def fenced_in(target: MysqlTarget, tables: Tables) -> list[str]:
    return [name for name in tables.logical if target.table(name) is not None]


def note(cutover: Cutover, token: str) -> str:
    """The note of the fences that a cutover raises."""
    return f"{_NOTE} {cutover.cutover_id} ({token})"


def hook_variables(work: CutoverWork, cutover: Cutover, phase: str) -> dict[str, str]:
    targets = [target.name for target in work.targets]
    return hooks.variables(phase, cutover.cutover_id, work.opened.name, targets, back=work.back)


def close(work: CutoverWork, places: Places, token: str) -> None:
    """Closes the gates of tables, which are made first where they are gone, or never were."""
    make_gates(places)
    close_gates(places, work.opened.name, token)


def close_lost(work: CutoverWork, lease: Lease, cutover: Cutover) -> bool:
    """Closes the gates that a cutover has closed, where these are gone; whether any were. What has compared the tables
    before does not count. Raises as `close`."""
    if "tables" not in cutover.details:
        return False
    back, tables = cutover.state == State.ROLLED_BACK, read(cutover.details["tables"])
    places = tables.targets if back else tables.sources
    if lost_gates(places) is None:
        return False
    close(work, places, cutover.details.get("arming") or cutover.cutover_id[:8])
    feeding = work.pipeline if back else work.way_back.preview()
    meta = work.meta.of(feeding.pipeline)
    for target in feeding.targets:
        meta.verifications.doubt(lease, target.name, DOUBT, "since then, gates of its tables were gone", {})
        meta.failures.clear(GATES, target.name)
    work.opened.progress.note(
        f"gates were closed again: `lockstep verify {feeding.pipeline}` names the rows that were written meanwhile"
    )
    return True


def tidy(work: CutoverWork, places: Places) -> None:
    """Removes what open gates have left at tables that the application writes to. Where that has to wait for something,
    they stay: they let all writes pass."""
    unless_it_fails(work, "open gates stay", partial(drop_gates, places), None)


def unless_it_fails(work: CutoverWork, what: str, step: Callable[[], T], otherwise: T) -> T:
    """A step that is worth a try, and without which the cutover continues: whatever it raises, the next one is done."""
    try:
        return step()
    except Exception as error:
        if not isinstance(error, LockstepError):
            log.exception("%s", what)
        work.opened.progress.note(f"{what}: {error}")
        return otherwise
