"""`lockstep cutover`: an application's switch from the sources of a pipeline to its target, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import TargetOption
from cdc_core.cli.output import listing, table
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.cli.run import driver
from cdc_core.errors import DataAtRisk, LockstepError, UsageError, to_document
from cdc_core.model.readable import duration
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.hooks import Answer

if TYPE_CHECKING:
    from cdc_core.meta import Cutover, Lease, Meta
    from cdc_core.operations.cutover.work import CutoverWork

app = typer.Typer(
    name="cutover", help="Switch an application from the sources to a target, and back.", no_args_is_help=True
)


@pipeline_command(app)
def plan(call: PipelineCall, target: TargetOption = None) -> None:
    """Show what a cutover would switch, and everything that prevents it. Switches nothing.

    \b
      lockstep cutover plan shop

    Lists what an application would miss in the new tables, missing privileges, open transactions, the age of the
    evidence, and how long writes were stopped last time. For PIPELINE_back it makes the same checks for `lockstep
    cutover back`. Exit code 3: something would stop it.
    """
    from cdc_core.operations.cutover.planning import plan as make_plan

    with _work(call, target) as work:
        made = make_plan(work)
    if made.disturbed:
        said = f"the cutover begins with a verification of all rows, as no earlier one counts: {made.disturbed}"
    elif made.evidence is None:
        said = f"no verification of all rows within {work.options.evidence}: the cutover begins with one"
    else:
        said = f"every row was last verified at {made.evidence}"
    rows = [
        (name, sum(map(len, tables.values())))
        for name, tables in (("leaves", made.tables.sources), ("comes to", made.tables.targets))
    ]
    title = f"cutover: {made.pipeline} → {made.target}"
    call.answer(
        made.to_json(),
        table(title, ("the application", "tables"), rows),
        Text(f"way back: {made.way_back}"),
        Text(said),
        Text(f"writes are stopped for at most {made.budget_s:g} s (cutover.budget_s); {made.stop}"),
        *(
            Text(f"{finding.status}: {finding.subject}: {finding.what}\n      {finding.remedy}")
            for finding in made.findings
        ),
    )
    if made.error is not None:
        raise typer.Exit(made.error.exit_code)


@pipeline_command(app)
def run(call: PipelineCall, target: TargetOption = None) -> None:
    """Switch the application to the target: catch up, stop writes, prove that both sides are equal, switch.

    \b
      lockstep cutover run shop

    Until cutover.switch_with is called, every error and every kill leads back to the start. Writes stop for at most
    cutover.budget_s. Afterwards run PIPELINE_back until `lockstep cutover complete`. Pause the pipeline's DAG first.
    Exit codes: 75 rolled back, nothing has happened; 4 the command did not say whether it has switched the application.
    """
    from cdc_core.operations.cutover.machine import run as begin

    _move(call, target, begin)


@pipeline_command(app)
def rehearse(call: PipelineCall, target: TargetOption = None) -> None:
    """Do everything up to the proof, let writes continue, and say how long they were stopped.

    \b
      lockstep cutover rehearse shop

    Fences, gates and switches nothing. The state afterwards is ROLLED_BACK.
    """
    from cdc_core.operations.cutover.machine import run as begin

    _move(call, target, partial(begin, rehearse=True))


@pipeline_command(app)
def resume(
    call: PipelineCall,
    answer: Annotated[
        Answer | None,
        typer.Option("--answer", help="Whether the application was switched."),
    ] = None,
    target: TargetOption = None,
) -> None:
    """Continue a cutover that was stopped or killed, or whose switch command gave no answer.

    \b
      lockstep cutover resume shop
      lockstep cutover resume shop --answer switched

    If cutover.switch_with was called, look where the application writes, and say so.
    """
    from cdc_core.operations.cutover.machine import resume as go_on

    if answer is Answer.UNKNOWN:
        raise UsageError(
            "`unknown` does not settle the cutover.",
            where="--answer",
            code="usage.argument",
            remedy="find out where the application writes; then give switched or not-switched",
        )
    _move(call, target, partial(go_on, answer=answer))


@pipeline_command(app)
def abort(call: PipelineCall, target: TargetOption = None) -> None:
    """Roll back a cutover that has not switched the application.

    \b
      lockstep cutover abort shop

    Frees what a killed process had stopped, fenced or gated. Safe to repeat.
    """
    from cdc_core.operations.cutover.machine import abort as end

    _move(call, target, end)


@pipeline_command(app)
def complete(call: PipelineCall, target: TargetOption = None) -> None:
    """End the time in which the application can go back.

    \b
      lockstep cutover complete shop

    The old tables stay closed. Stop PIPELINE_back, and drop them when you no longer need them.
    """
    from cdc_core.operations.cutover.machine import complete as end

    _move(call, target, end)


@pipeline_command(app)
def back(call: PipelineCall) -> None:
    """Lead the application back to the old tables, by the same steps in the other direction.

    \b
      lockstep cutover back shop

    Continues a cutover back that was stopped or killed. Exit codes: as `lockstep cutover run`.
    """
    from cdc_core.config import back_file, load
    from cdc_core.operations.cutover.machine import back as lead_back

    file = back_file(call.path)
    if not file.exists():
        raise UsageError(
            f"There is no way back yet: no cutover of {call.pipeline.pipeline!r} has written {file.name}.",
            where=str(file),
            code="usage.nothing_open",
            remedy="lead the application there first: `lockstep cutover run` writes that file",
        )
    _move(replace(call, path=file, pipeline=load(file)), None, lead_back)


@pipeline_command(app)
def status(call: PipelineCall) -> None:
    """Show the state of a cutover, how long writes were stopped, and whether the way back is ready.

    \b
      lockstep cutover status shop

    Exit code 4: a person must act, because no process is moving the cutover, or tables take writes that they should
    refuse.
    """
    from cdc_core.cli.status import problem_lines
    from cdc_core.operations.cutover.cutover_report import left_alone
    from cdc_core.operations.status_report import problem_document

    parsed = call.pipeline
    with call.meta() as meta:
        latest = meta.cutovers.latest(parsed.pipeline)
        if latest is None:
            call.answer({"cutover": None}, Text("No cutover has begun."))
            return
        alone = latest.cutover_id in {cutover.cutover_id for cutover in meta.status.find().cutovers}
        left = left_alone(latest, stops=parsed.cutover.stop_with is not None) if alone else None
        lost = _lost(call, latest)
        more = {} if left is None else {"problem": problem_document(left)}
        said = [problem_lines(left)] if left is not None else [Text(str(lost))] if lost is not None else []
        _shown(call, meta, latest, more if lost is None else to_document(lost), *said)
    if left is not None or lost is not None:
        raise typer.Exit(DataAtRisk.exit_code)


def _lost(call: PipelineCall, cutover: Cutover) -> DataAtRisk | None:
    """The error for gates that a cutover has closed and that are open now."""
    from cdc_core.operations.cutover.work import read
    from cdc_core.targets.bookkeeping.gates import lost_gates

    if cutover.state not in (State.SWITCHED, State.WATCH, State.COMPLETE):
        return None
    try:
        return lost_gates(read(cutover.details["tables"]).sources)
    except LockstepError as error:
        call.output.note(f"Lockstep could not find out whether the old tables refuse writes: {error}")
        return None


def _move(call: PipelineCall, target: str | None, step: Callable[[CutoverWork, Lease], Cutover]) -> None:
    """Takes a step of a cutover, and shows where that has led."""
    from cdc_core.operations.cutover.moving import cutover_lease

    with _work(call, target) as work, cutover_lease(work) as lease:
        cutover = step(work, lease)
        _shown(call, work.meta, cutover)
        if cutover.state == State.WATCH and not work.back:
            call.output.note(f"run the way back: lockstep run {cutover.way_back} --every 10s")


def _shown(
    call: PipelineCall, meta: Meta, cutover: Cutover, more: Mapping[str, Any] | None = None, *said: Text
) -> None:
    """more, said: what else the answer has, as a document and for people."""
    from cdc_core.operations.cutover.cutover_report import clock_line, cutover_document

    document = cutover_document(meta, cutover, call.pipeline.cutover) | dict(more or {})
    why = "rolled back" if cutover.state == State.ROLLED_BACK else "last error"  # a rehearsal is no error
    lines = [
        f"in this state for {duration(document['in_state_s'])}" if document["open"] else "",
        clock_line(document),
        *(f"{finding['status']}: {finding['subject']}: {finding['what']}" for finding in document["findings"]),
        f"the switch command: {document['said']}" if document["said"] else "",
        f"{why}: {document['last_error']}" if document["last_error"] else "",
        document["way_back"]["said"] if document["way_back"] else "",
    ]
    title = f"cutover {cutover.cutover_id} of {cutover.pipeline}: {cutover.state}"
    call.output.answer(document, listing(title, document["steps"], "state at"), *said, *map(Text, filter(None, lines)))


@contextmanager
def _work(call: PipelineCall, target: str | None) -> Iterator[CutoverWork]:
    """The work on a pipeline and one of its targets; a way back has all targets."""
    from cdc_core.operations.cutover.opening import work_of

    with (
        call.opened(line=False) as ready,
        driver(call.pipeline, ready.store) as spark,
        work_of(ready, spark, call.path, target) as work,
    ):
        yield work
