"""`lockstep cutover`: an application's switch from the sources of a pipeline to its target, and back."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.extract import extract_sources
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetOption,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, duration, error_document, table
from cdc_core.cli.run import run_context, run_id
from cdc_core.cli.verify import extract_on, one_target
from cdc_core.cutover.hooks import Answer
from cdc_core.cutover.states import State
from cdc_core.errors import DataAtRisk, LockstepError, RetryLater, UsageError
from cdc_core.windows import age_us, parse_moment, to_us

if TYPE_CHECKING:
    from cdc_core import config
    from cdc_core.config import Pipeline
    from cdc_core.cutover.work import CaughtUp, Evidence, Work
    from cdc_core.extract import DrainResult
    from cdc_core.meta import Cutover, Meta
    from cdc_core.run import RunContext
    from cdc_core.verify.job import Job

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
    from cdc_core.cli.cutover_status import expected_stop
    from cdc_core.cutover.preparing import findings_of, known, require_hooks
    from cdc_core.cutover.proof import Since, prover
    from cdc_core.cutover.readiness import failed
    from cdc_core.cutover.work import tables_of

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, output) as work:
        require_hooks(work)
        work.way_back.check()
        with ExitStack() as opened:
            provers = [opened.enter_context(prover(work.jobs[one.name])) for one in work.targets]
            tables = tables_of(work, provers)
            fed = {one.name: set(proving.feeding) for one, proving in zip(work.targets, provers, strict=True)}
        findings = [one for one in findings_of(work, tables) if one.status != "ok"]
        before = known(work)
        stop_s, stop = expected_stop(work.meta.latest_cutover(work.pipeline.pipeline))
    documents = [(fed[name], one.document) for name, one in before.evidence.items()]
    ended = [
        str(one["ended"]) if one is not None and Since.of_evidence(one).tables >= tables_fed else None
        for tables_fed, one in documents
    ]
    oldest = None if None in ended else min(one for one in ended if one is not None)
    disturbed = before.why
    if disturbed:
        said = f"the cutover begins with a verification of all rows, as no earlier one counts: {disturbed}"
    elif oldest is None:
        said = f"no verification of all rows within {work.options.evidence}: the cutover begins with one"
    else:
        said = f"every row was last verified at {oldest}"
    named = ", ".join(one.name for one in work.targets)
    document = {
        "pipeline": work.pipeline.pipeline,
        "target": named,
        "tables": list(tables.logical),
        "leaves": {name: [".".join(one) for one in found] for name, found in tables.sources.items()},
        "comes_to": {name: [".".join(one) for one in found] for name, found in tables.targets.items()},
        "way_back": work.way_back.name,
        "evidence": oldest,
        "disturbed": disturbed or None,
        "budget_s": work.options.budget_s,
        "expected_stop_s": stop_s,
        "findings": [
            {"status": one.status, "subject": one.subject, "what": one.what, "remedy": one.remedy} for one in findings
        ],
    }
    rows = [
        (name, sum(map(len, found.values())))
        for name, found in (("leaves", tables.sources), ("comes to", tables.targets))
    ]
    error = failed(findings)
    if error is not None:
        document |= error_document(error)
    output.answer(
        document,
        table(f"cutover: {work.pipeline.pipeline} → {named}", ("the application", "tables"), rows,
              numbers=("tables",)),
        Text(f"way back: {work.way_back.name}"),
        Text(said),
        Text(f"writes are stopped for at most {work.options.budget_s:g} s (cutover.budget_s); {stop}"),
        *(Text(f"{one.status}: {one.subject}: {one.what}\n      {one.remedy}") for one in findings),
    )  # fmt: skip
    if error is not None:
        raise typer.Exit(error.exit_code)


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
            code="usage.argument",
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

    output = CliOutput(as_json)
    path, _ = load_pipeline(pipeline, pipelines)
    with _work(str(_back_file(path)), pipelines, None, output) as work, cutover_lease(work) as lease:
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
    from cdc_core.cli.cutover_status import left_alone
    from cdc_core.cli.status import problem_document, problem_lines
    from cdc_core.meta import Meta

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
        _shown(output, meta, found, parsed.cutover, more if lost is None else error_document(lost), *said)
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
    from cdc_core.cli.cutover_status import clock_line, cutover_document

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
    from cdc_core.cutover.way_back import ExistingWayBack, NewWayBack
    from cdc_core.cutover.work import Work
    from cdc_core.verify.job import Job

    path, parsed = load_pipeline(pipeline, pipelines)
    other = _forward_of(path, parsed, pipelines)
    chosen = parsed.targets if other is not None else (parsed.target(one_target(parsed, target, "cutover")),)
    with run_context(parsed, CliOutput(as_json=True)) as context:
        jobs = {
            one.name: Job(
                parsed, one, context.meta, context.store, lambda source: extract_on(parsed, source, output),
                os.environ, said=output.note,
            )
            for one in chosen
        }  # fmt: skip
        hands = _Hands(context, jobs, CliOutput(as_json=True), itertools.count(1))
        if other is not None:
            quiet, names = CliOutput(as_json=True), [one.name for one in other.sources]
            meta = context.meta.of(other.pipeline)
            existing = ExistingWayBack(other, meta, lambda: extract_sources(other, names, None, quiet))
            yield Work(parsed, chosen, jobs, context.meta, hands, existing, True, os.environ, output.note)
        else:
            new = NewWayBack(jobs[chosen[0].name], _back_file(path))
            yield Work(parsed, chosen, jobs, context.meta, hands, new, False, os.environ, output.note)


def _forward_of(path: Path, parsed: Pipeline, pipelines: Path) -> Pipeline | None:
    """The pipeline of which this is the way back; None if it is none."""
    from cdc_core.config import WAY_BACK_SUFFIX
    from cdc_core.meta import Meta

    forward = path.with_name(f"{path.stem.removesuffix(WAY_BACK_SUFFIX)}{path.suffix}")
    if not parsed.pipeline.endswith(WAY_BACK_SUFFIX) or forward == path or not forward.is_file():
        return None
    _, found = load_pipeline(str(forward), pipelines)
    with Meta.open(found.meta.url, found.pipeline) as meta:
        known = meta.latest_cutover(found.pipeline)
    return found if known is not None and known.way_back == parsed.pipeline else None


def _back_file(path: Path) -> Path:
    from cdc_core.config import WAY_BACK_SUFFIX

    return path.with_name(f"{path.stem}{WAY_BACK_SUFFIX}{path.suffix}")


@dataclass(frozen=True)
class _Hands:
    """Runs and verifications, as `lockstep run` and `lockstep verify` make them."""

    context: RunContext
    jobs: Mapping[str, Job]
    quiet: CliOutput
    numbers: Iterator[int]

    def catch_up(self) -> CaughtUp:
        from cdc_core.cutover.clock import Laps
        from cdc_core.cutover.work import CaughtUp
        from cdc_core.run import apply

        began_s, laps = time.monotonic(), Laps()
        laps.begin("extract")
        results = self._extracted()
        context = replace(self.context, began=lambda task: laps.begin(task.rpartition(": ")[2]))
        apply(context, run_id(context, f"cutover-{next(self.numbers)}"), targets=list(self.jobs))
        names = [one.name for one in self.context.pipeline.sources]
        view = self.context.meta.plan_view("", names, list(self.jobs), None)
        if any(view.pending.values()):
            raise RetryLater(
                "Batches are left that another run has taken and not committed.",
                where=self.context.pipeline.pipeline,
                code="run.taken_over",
                remedy="pause the pipeline's DAG, and wait for its runs to end",
            )
        staged = sum(result.staged.rows for _, result in results)
        reached = {name: result.position for name, result in results}
        return CaughtUp(staged, reached, time.monotonic() - began_s, laps.until_now())

    def warm_up(self) -> None:
        self.context.spark.load()

    def extract(self) -> None:
        self._extracted()

    def _extracted(self) -> list[tuple[str, DrainResult]]:
        pipeline = self.context.pipeline
        return extract_sources(pipeline, [one.name for one in pipeline.sources], None, self.quiet)

    def verify(self, target: str) -> Mapping[str, Any]:
        from cdc_core.verify import evidence
        from cdc_core.verify.lease import verifier_lease
        from cdc_core.verify.modes import outcome
        from cdc_core.verify.verifier import verify

        with verifier_lease(self.context.meta, self.context.pipeline.pipeline, target) as lease:
            job = replace(self.jobs[target], lease=lease)
            found = verify(job)
            path = evidence.keep(job, found)
        error = outcome(found.results, target)
        if error is not None:
            raise error
        return evidence.read(self.context.store, path)

    def newest_evidence(self, target: str) -> Evidence:
        from cdc_core.cutover.work import Evidence
        from cdc_core.verify import evidence
        from cdc_core.verify.job import config_digest
        from cdc_core.verify.modes import found_since

        pipeline, meta = self.context.pipeline, self.context.meta
        known = meta.verification(pipeline.pipeline, target)
        summary = known.evidence.get("ordered") if known is not None else None
        if known is None or summary is None:
            return Evidence(None)
        document = evidence.read(self.context.store, summary["path"])
        age = meta.now_us() - to_us(parse_moment(document["ended"]))
        usable = (
            document["equal"] is True
            and document["all_tables"]
            and document["config_sha256"] == config_digest(pipeline)
            and age <= age_us(pipeline.cutover.evidence)
        )
        found = found_since(known.evidence)
        return Evidence(document if usable and not found else None, found)
