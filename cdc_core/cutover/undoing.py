"""Frees what a cutover has stopped, fenced and gated."""

from __future__ import annotations

from cdc_core.cutover import hooks
from cdc_core.cutover.gates import closing, open_gates
from cdc_core.cutover.locks import Places
from cdc_core.cutover.work import Work, message, read
from cdc_core.meta import Cutover
from cdc_core.target.fence import admit


def undo(work: Work, cutover: Cutover) -> None:
    """Undoes what a cutover has made beside its locks; safe to repeat, also after half of it was done."""
    if cutover.details.get("arming"):
        tables = read(cutover.details["tables"])
        if cutover.details.get("opened"):
            close(work, read({**cutover.details["tables"], "targets": cutover.details["opened"]}).targets)
        open_gates(tables.sources, work.environ)
        work.way_back.disarm()
        for target in work.targets:
            names = [name for name in tables.logical if target.table(name) is not None]
            admit(target, names, work.pipeline.pipeline, work.pair)
    if work.options.stop_with is not None:
        hooks.stop(work.options.stop_with, told(work, cutover, hooks.RELEASE), work.options.hook_s, work.environ)


def told(work: Work, cutover: Cutover, phase: str) -> dict[str, str]:
    return hooks.variables(phase, cutover.cutover_id, work.pipeline.pipeline, back=work.back)


def close(work: Work, places: Places) -> None:
    with closing(places, message(work), work.environ) as closed:
        closed()
