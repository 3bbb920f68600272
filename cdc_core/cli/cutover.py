"""`lockstep cutover`: an application's switch from the sources of a pipeline to its target, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetOption,
    load_pipeline,
    opened,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.cli.run import driver
from cdc_core.cutover.hooks import Answer
from cdc_core.cutover.states import State
from cdc_core.errors import DataAtRisk, LockstepError, UsageError, to_document
from cdc_core.words import duration

if TYPE_CHECKING:
    from cdc_core import config
    from cdc_core.cutover.work import Work
    from cdc_core.meta import Cutover, Meta

app = typer.Typer(
    name="cutover", help="Switch an application from the sources to a target, and back.", no_args_is_help=True
)


@app.command()
def plan(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show what a cutover would switch, and the pipeline of the way back; switch nothing.

    \b
      lockstep cutover plan shop

    Refuses tables that cannot be carried back or compared. Lists what an application would miss in the new tables
    (AUTO_INCREMENT, defaults, triggers), lacking privileges, open transactions, scheduled events, and what
    `lockstep check` says of the way back. Says how old the last full verification is; `lockstep cutover run` makes it
    again if it is older than cutover.evidence. Says for how long the last rehearsal has stopped writes. Of
    PIPELINE_back it says the same of `lockstep cutover back PIPELINE`, for which it reads the log of the old tables: a
    TRUNCATE there makes every earlier verification worthless. Exit code 3: something would stop it.
    """
    from cdc_core.cutover.planning import plan as make_plan

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work:
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
    output.answer(
        made.to_json(),
        table(title, ("the application", "tables"), rows, numbers=("tables",)),
        Text(f"way back: {made.way_back}"),
        Text(said),
        Text(f"writes are stopped for at most {made.budget_s:g} s (cutover.budget_s); {made.stop}"),
        *(Text(f"{one.status}: {one.subject}: {one.what}\n      {one.remedy}") for one in made.findings),
    )
    if made.error is not None:
        raise typer.Exit(made.error.exit_code)


@app.command()
def run(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Switch the application to the target: catch up, stop writes, prove that both sides are equal, switch.

    \b
      lockstep cutover run shop

    Nothing is lost, at whatever moment this ends: until cutover.switch_with is called, every error and every kill leads
    back to where it began, and the application keeps writing to the old tables. Writes are stopped for at most
    cutover.budget_s. Afterwards the old tables take no writes, and PIPELINE_back carries what the application writes
    back to them: run it (`lockstep run PIPELINE_back --every 10s`, or its DAG) until `lockstep cutover complete`.
    Pause the pipeline's own DAG before. Exit code 75: rolled back, nothing has happened; 4: the command did not say
    whether it has switched the application.
    """
    from cdc_core.cutover.machine import run as begin
    from cdc_core.cutover.moving import cutover_lease

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work, cutover_lease(work) as lease:
        _answer(output, work, begin(work, lease))


@app.command()
def rehearse(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Do all that a cutover does as far as the proof, and let writes continue: says how long they were stopped.

    \b
      lockstep cutover rehearse shop

    Stops writes (cutover.stop_with, locks) as `lockstep cutover run` does, for at most cutover.budget_s. Nothing is
    fenced, gated or switched. The state afterwards is ROLLED_BACK.
    """
    from cdc_core.cutover.machine import run as begin
    from cdc_core.cutover.moving import cutover_lease

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work, cutover_lease(work) as lease:
        _answer(output, work, begin(work, lease, rehearse=True))


@app.command()
def resume(
    pipeline: PipelineArgument,
    answer: Annotated[
        Answer | None,
        typer.Option("--answer", help="What you know of the command that had to switch the application."),
    ] = None,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Continue a cutover that was stopped or killed, or whose command did not say what it has done.

    \b
      lockstep cutover resume shop
      lockstep cutover resume shop --answer switched
      lockstep cutover resume shop --answer not-switched

    What a killed process had stopped, fenced or gated is freed first, then the cutover begins again; a rehearsal is
    continued as a rehearsal, and switches nothing. If it had called cutover.switch_with, only you know what has
    happened: look where the application writes, and say so.
    """
    from cdc_core.cutover.machine import resume as go_on
    from cdc_core.cutover.moving import cutover_lease

    output = CliOutput(as_json)
    if answer is Answer.UNKNOWN:
        raise UsageError(
            "An unknown answer answers nothing.",
            where="--answer",
            code="cli.usage",
            remedy="find out where the application writes; then give switched or not-switched",
        )
    with _work(pipeline, pipelines, target, output) as work, cutover_lease(work) as lease:
        _answer(output, work, go_on(work, lease, answer))


@app.command()
def abort(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """End a cutover that has not switched the application: nothing has happened then.

    \b
      lockstep cutover abort shop

    Safe to repeat. Frees what a killed process had stopped, fenced or gated.
    """
    from cdc_core.cutover.machine import abort as end
    from cdc_core.cutover.moving import cutover_lease

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work, cutover_lease(work) as lease:
        _answer(output, work, end(work, lease))


@app.command()
def complete(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """End the time in which the application can go back.

    \b
      lockstep cutover complete shop

    The old tables stay closed; stop PIPELINE_back, and drop them when you no longer need them.
    """
    from cdc_core.cutover.machine import complete as end
    from cdc_core.cutover.moving import cutover_lease

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work, cutover_lease(work) as lease:
        _answer(output, work, end(work, lease))


@app.command()
def back(
    pipeline: PipelineArgument,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Lead the application back to the old tables, by the same steps in the other direction.

    \b
      lockstep cutover back shop

    The way back has carried the application's writes to the old tables; this proves that they have all of them, and
    calls cutover.switch_with with LOCKSTEP_CUTOVER_DIRECTION=back. Afterwards the pipeline carries changes to the
    target again. Continues a cutover back that was stopped or killed. Ends and exits as `lockstep cutover run`; what it
    leaves is that of PIPELINE_back, as in `lockstep cutover resume PIPELINE_back`.
    """
    from cdc_core.cutover.machine import back as lead_back
    from cdc_core.cutover.moving import cutover_lease
    from cdc_core.cutover.opening import back_file

    output = CliOutput(as_json)
    path, _ = load_pipeline(pipeline, pipelines)
    with _work(str(back_file(path)), pipelines, None, output) as work, cutover_lease(work) as lease:
        _answer(output, work, lead_back(work, lease))


@app.command()
def status(
    pipeline: PipelineArgument,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a cutover, for how long writes are stopped, and whether the way back is ready.

    \b
      lockstep cutover status shop

    Reads the meta database, and checks that the servers that the application has left still refuse writes. Exit code 4
    means that a person must act: a cutover is half done and no process is moving it, or tables take writes that they
    should refuse.
    """
    from cdc_core.cli.status import problem_lines
    from cdc_core.cutover.status import left_alone
    from cdc_core.meta import Meta
    from cdc_core.operations.status import problem_document

    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        found = meta.latest_cutover(parsed.pipeline)
        if found is None:
            output.answer({"pipeline": parsed.pipeline, "cutover": None}, Text("No cutover was begun."))
            return
        alone = found.cutover_id in {one.cutover_id for one in meta.status(parsed.pipeline).cutovers}
        left = left_alone(found, stops=parsed.cutover.stop_with is not None) if alone else None
        lost = _lost(output, found)
        more = {} if left is None else {"problem": problem_document(left)}
        said = [problem_lines(left)] if left is not None else [Text(str(lost))] if lost is not None else []
        _shown(output, meta, found, parsed.cutover, more if lost is None else to_document(lost), *said)
    if left is not None or lost is not None:
        raise typer.Exit(DataAtRisk.exit_code)


def _lost(output: CliOutput, found: Cutover) -> DataAtRisk | None:
    """What is wrong with the gates of a cutover that has switched."""
    from cdc_core.cutover.work import read
    from cdc_core.target.gates import lost_gates

    if found.state not in (State.SWITCHED, State.WATCH, State.COMPLETE):
        return None
    try:
        return lost_gates(read(found.details["tables"]).sources, os.environ)
    except LockstepError as error:
        output.note(f"nobody knows whether the old tables refuse writes: {error}")
        return None


def _answer(output: CliOutput, work: Work, found: Cutover) -> None:
    _shown(output, work.meta, found, work.options)
    if found.state == State.WATCH and not work.back:
        output.note(f"run the way back: lockstep run {found.way_back} --every 10s")


def _shown(
    output: CliOutput,
    meta: Meta,
    found: Cutover,
    options: config.Cutover,
    more: Mapping[str, Any] | None = None,
    *said: Text,
) -> None:
    """more, said: what else the answer has, as a document and for people."""
    from cdc_core.cutover.status import clock_line, cutover_document

    document = cutover_document(meta, found, options) | dict(more or {})
    rows = [(one["state"], one["at"]) for one in document["steps"]]
    lines = [
        f"in this state for {duration(document['in_state_s'])}" if document["open"] else "",
        clock_line(document),
        *(f"{one['status']}: {one['subject']}: {one['what']}" for one in document["findings"]),
        f"the switch command: {document['said']}" if document["said"] else "",
        f"last error: {document['last_error']}" if document["last_error"] else "",
        document["way_back"]["said"] if document["way_back"] else "",
    ]
    title = f"cutover {found.cutover_id} of {found.pipeline}: {found.state}"
    output.answer(document, table(title, ("state", "at (UTC)"), rows), *said, *map(Text, filter(None, lines)))


@contextmanager
def _work(pipeline: str, pipelines: Path, target: str | None, output: CliOutput) -> Iterator[Work]:
    """Of a pipeline and one of its targets; of a way back, of all of them."""
    from cdc_core.cutover.opening import work_of

    path, parsed = load_pipeline(pipeline, pipelines)
    with (
        opened(parsed, output, bars=False) as ready,
        driver(parsed, ready.store) as spark,
        work_of(ready, spark, path, target) as work,
    ):
        yield work
