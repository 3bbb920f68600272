"""The moments at which something is killed during a cutover, in its order. `make move-matrix` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROLLED_BACK, SWITCHED, EITHER = "rolled back", "switched", "either"
"""EITHER: it depends on how soon the server is there again."""


@dataclass(frozen=True, slots=True)
class Case:
    """direction: of DIRECTIONS. moment: for people. module, function, when, call, given: see
    tests/crash/hook/sitecustomize.py. killed: of VICTIMS. ends: where the application writes then. sample: part of
    `make test`."""

    direction: str
    step: str
    moment: str
    killed: str
    module: str
    function: str
    when: str
    ends: str
    call: int = 1
    given: str = ""
    sample: bool = False

    @property
    def id(self) -> str:
        return f"{self.direction}, {self.step}: {self.killed}, {self.moment}".replace(" ", "_")


COMMAND, PAUSED = "the command", "the command, paused"
SOURCE, TARGET, META = "the source", "the target", "the meta database"
VICTIMS = (COMMAND, PAUSED, SOURCE, TARGET, META)
"""PAUSED: stopped until another process has ended the cutover, then continued."""

THERE, BACK = "there", "back"
DIRECTIONS = (THERE, BACK)


@dataclass(frozen=True, slots=True)
class _Moment:
    step: str
    moment: str
    module: str
    function: str
    when: str
    call: int = 1
    given: str = ""


_CUTOVER = "cdc_core.operations.cutover"
_HOLD = (
    _Moment("chase", "before a run", f"{_CUTOVER}.chase", "_caught_up", "before", 2),
    _Moment("chase", "the gates are made", f"{_CUTOVER}.machine", "make_gates", "after"),
    _Moment("stop", "the tables are locked", f"{_CUTOVER}.locks", "Locks.take", "after"),
    _Moment("drain", "everything is applied", f"{_CUTOVER}.clock", "Clock.require", "before", 3),
    _Moment("prove", "everything is compared", f"{_CUTOVER}.hold", "_arm", "before"),
    _Moment("arm", "the fences are raised", "cdc_core.targets.bookkeeping.fence", "raise_fences", "after"),
    _Moment("arm", "the gates are closed", f"{_CUTOVER}.hold", "written_since", "before"),
)
_SWITCH = (
    _Moment("switch", "before the switch command is called", f"{_CUTOVER}.hooks", "_run", "before"),
    _Moment("switch", "the switch command has ended", f"{_CUTOVER}.hooks", "_run", "after"),
    _Moment("switch", "the answer is written down", f"{_CUTOVER}.machine", "answered", "before"),
    _Moment("switched", "before the way back is let in", f"{_CUTOVER}.machine", "_finished", "before"),
)
_MOMENTS = {
    THERE: (*_HOLD, *_SWITCH),
    BACK: (
        *_HOLD,
        _Moment("arm", "before the gates of the old tables are opened", f"{_CUTOVER}.machine", "open_gates", "before"),
        _Moment("arm", "the gates of the old tables are opened", f"{_CUTOVER}.machine", "open_gates", "after"),
        *_SWITCH,
        _Moment("switched", "the way there is let in", f"{_CUTOVER}.machine", "admit", "after"),
        _Moment("switched", "the cutover there has ended", f"{_CUTOVER}.moving", "Moving.end_other", "after"),
        _Moment("switched", "before its end is written down", "cdc_core.meta.pipeline_meta", "Cutovers.move", "before",
                given="COMPLETE"),
    ),
}  # fmt: skip
_SAMPLE = {
    (THERE, "before the switch command is called", PAUSED),
    (BACK, "the gates of the old tables are opened", COMMAND),
}
_LATE = {("the gates are made", TARGET), ("the gates are closed", TARGET), ("the gates are closed", SOURCE)}
"""Nothing needs these servers for a moment then."""


def _ends(at: _Moment, killed: str) -> str:
    moment = at.moment
    if at.step == "switched" or moment in ("the switch command has ended", "the answer is written down"):
        return SWITCHED
    if killed in (COMMAND, PAUSED):
        return ROLLED_BACK
    if at.function == "open_gates":  # at the server of the target
        return ROLLED_BACK if killed == TARGET and at.when == "before" else SWITCHED
    if moment == "before a run":  # it is tried again; what compares rows has lost its sessions at the source
        return ROLLED_BACK if killed == SOURCE else SWITCHED
    if moment == "before the switch command is called":
        return SWITCHED
    return EITHER if killed == META or (moment, killed) in _LATE else ROLLED_BACK


CASES = tuple(
    Case(direction, at.step, at.moment, killed, at.module, at.function, at.when, _ends(at, killed), at.call, at.given,
         (direction, at.moment, killed) in _SAMPLE)
    for direction in DIRECTIONS
    for at in _MOMENTS[direction]
    for killed in VICTIMS
)  # fmt: skip


def table(direction: str, outcomes: Mapping[str, str] | None = None) -> list[str]:
    """The cases of a direction as lines of Markdown, one for each moment; outcomes: by id."""
    cells = {
        (case.step, case.moment, case.killed): case.ends if outcomes is None else outcomes.get(case.id, "not run")
        for case in CASES
        if case.direction == direction
    }
    heads = ["step", "when", *VICTIMS]
    rows = [
        [at.step, at.moment, *(cells[at.step, at.moment, killed] for killed in VICTIMS)] for at in _MOMENTS[direction]
    ]
    return [f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows]]
