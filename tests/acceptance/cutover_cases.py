"""The moments at which something is killed during a cutover, in its order. docs/reliability.md has them as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_core.cutover.states import State

ROLLED_BACK, SWITCHED, EITHER = "rolled back", "switched", "either"
"""EITHER: it depends on how soon the server is there again."""


@dataclass(frozen=True, slots=True)
class Case:
    """moment: for people. module, function, when, call: see tests/crash/hook/sitecustomize.py. killed: of VICTIMS.
    ends: where the application writes then. sample: part of `make test`."""

    step: str
    moment: str
    killed: str
    module: str
    function: str
    when: str
    ends: str
    call: int = 1
    sample: bool = False

    @property
    def id(self) -> str:
        return f"{self.step}: {self.killed}, {self.moment}".replace(" ", "_")


COMMAND, PAUSED = "the command", "the command, paused"
SOURCE, TARGET, META = "the source", "the target", "the meta database"
VICTIMS = (COMMAND, PAUSED, SOURCE, TARGET, META)
"""PAUSED: stopped until another process has ended the cutover, then continued."""

_CUTOVER = "cdc_core.cutover"
_MOMENTS = (
    ("chase", "before a run", f"{_CUTOVER}.chase", "_caught_up", "before", 2),
    ("stop", "the tables are locked", f"{_CUTOVER}.locks", "_lock", "after", 1),
    ("drain", "everything is applied", f"{_CUTOVER}.clock", "Clock.require", "before", 1),
    ("prove", "everything is compared", f"{_CUTOVER}.hold", "_arm", "before", 1),
    ("arm", "the fences are raised", "cdc_core.target.fence", "raise_fences", "after", 1),
    ("arm", "a gate is closed", f"{_CUTOVER}.gates", "_create", "after", 1),
    ("arm", "the gates are closed", f"{_CUTOVER}.hold", "written_since", "before", 1),
    ("switch", "before the switch command is called", f"{_CUTOVER}.hooks", "_run", "before", 1),
    ("switch", "the switch command has ended", f"{_CUTOVER}.hooks", "_run", "after", 1),
    ("switch", "the answer is written down", f"{_CUTOVER}.machine", "answered", "before", 1),
    ("switched", "before the way back is let in", f"{_CUTOVER}.machine", "_finished", "before", 1),
)
_SAMPLE = {
    ("a gate is closed", SOURCE),
    ("before the switch command is called", PAUSED),
}
_SWITCHES = {"the switch command has ended", "the answer is written down", "before the way back is let in"}


_LATE = {("a gate is closed", TARGET), ("the gates are closed", TARGET), ("the gates are closed", SOURCE)}
"""Nothing needs these servers for a moment then."""


def _ends(moment: str, killed: str) -> str:
    if moment in _SWITCHES:
        return SWITCHED
    if killed in (COMMAND, PAUSED):
        return ROLLED_BACK
    if moment == "before a run":  # it is tried again; what compares rows has lost its sessions at the source
        return ROLLED_BACK if killed == SOURCE else SWITCHED
    if moment == "before the switch command is called":
        return SWITCHED
    return EITHER if killed == META or (moment, killed) in _LATE else ROLLED_BACK


CASES = tuple(
    Case(step, moment, killed, module, function, when, _ends(moment, killed), call, (moment, killed) in _SAMPLE)
    for step, moment, module, function, when, call in _MOMENTS
    for killed in VICTIMS
)


def table(outcomes: Mapping[str, str] | None = None) -> list[str]:
    """The cases as lines of Markdown, one for each moment; outcomes: by id."""
    cells = {
        (one.step, one.moment, one.killed): one.ends if outcomes is None else outcomes.get(one.id, "not run")
        for one in CASES
    }
    heads = ["step", "when", *VICTIMS]
    rows = [[step, moment, *(cells[step, moment, killed] for killed in VICTIMS)] for step, moment, *_ in _MOMENTS]
    return [f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows]]


def random_table(ended: Mapping[tuple[str, str, str, str], int]) -> list[str]:
    """How many cutovers ended how. ended: by state, what was killed in it, direction and end."""
    ways = [(direction, end) for direction in ("there", "back") for end in (SWITCHED, ROLLED_BACK)]
    heads = ["state", "killed or paused", *(f"{direction}: {end}" for direction, end in ways)]
    order = [str(state) for state in State]
    struck = sorted(
        {(state, victim) for state, victim, *_ in ended},
        key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one[1]),
    )
    rows = [[*one, *(str(ended.get((*one, *way), 0)) for way in ways)] for one in struck]
    total = ["all", "", *(str(sum(n for (*_, a, b), n in ended.items() if (a, b) == way)) for way in ways)]
    return [f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows, total]]
