"""`lockstep run`: the whole pipeline without Airflow."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.extract import extracted_document
from cdc_core.cli.options import TargetsOption, UntilOption, age_us, moment_us, time_us
from cdc_core.cli.output import CliOutput
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.cli.status import ledger_table
from cdc_core.errors import LockstepError, UsageError
from cdc_core.model.choices import choose
from cdc_core.model.readable import counted
from cdc_core.model.windows import MICROSECONDS
from cdc_core.process.extras import require

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.operations.apply.replay import Selection
    from cdc_core.operations.extract import DrainResult
    from cdc_core.operations.pipeline_run import RunResult
    from cdc_core.operations.repair.reverse_query import Queried
    from cdc_core.stage.objects import ObjectStore
    from spark_jobs.driver import Driver


app = typer.Typer()

StagedOption = Annotated[bool, typer.Option("--staged", help="Do not read the sources.")]
ReplayOption = Annotated[
    bool, typer.Option("--replay", help="Apply staged batches to one --target, again or for the first time.")
]
FromOption = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="TIME|BATCH", help="Replay from the window that contains a time, or from a batch."),
]
ToOption = Annotated[
    list[str] | None,
    typer.Option("--to", metavar="TIME|BATCH", help="Replay windows up to a time, or batches up to and including one."),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="Replay only this logical table; may be repeated."),
]
RequeueOption = Annotated[
    str | None, typer.Option("--requeue", metavar="RUN", help="Replay the batches of a run that has quarantined rows.")
]


EveryOption = Annotated[
    str | None,
    typer.Option("--every", metavar="AGE", help="Repeat this often (10s, 5m) until stopped."),
]


@pipeline_command(app)
def run(
    call: PipelineCall,
    until: UntilOption = "now",
    every: EveryOption = None,
    target: TargetsOption = None,
    staged: StagedOption = False,
    replay: ReplayOption = False,
    begin: FromOption = None,
    end: ToOption = None,
    table_names: TableOption = None,
    requeue: RequeueOption = None,
) -> None:
    """Run the whole pipeline without Airflow: extract, copy, plan, merge, filter, write, quality, commit.

    \b
      lockstep run shop --every 10s
      lockstep run shop --replay --target shards --from 2026-11-21T04:00:00Z --to 2026-11-21T06:00:00Z

    Applies everything that is staged and not applied yet, and prints the ledger, which must add up. --replay applies
    batches again, without the sources, and moves no consume record. --requeue replays a run whose rows a target
    rejected; fix the target first. --every repeats the run until Ctrl-C and retries temporary errors.
    """
    parsed = call.pipeline
    again = replay or requeue is not None
    targets = choose([configured.name for configured in parsed.targets], target, "target", "--target")
    until_us = moment_us(until)
    selection = _selection(parsed, targets, begin, end, table_names, replay=replay)
    if every is not None and (until != "now" or again or staged):
        raise _usage("--every repeats whole runs up to now.", "leave out the other options, except --target")
    if requeue is not None and (replay or staged or begin or end or table_names):
        raise _usage("--requeue goes alone, or with --target.", "leave out the other options")
    if not targets:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(call.path),
            code="usage.argument",
            remedy="add one to `targets`, or use `lockstep extract`, which stages only",
        )
    require("spark", "quality", by="lockstep run")
    if every is not None:
        _repeat(call, targets, age_us(every, "--every", "10s") / MICROSECONDS)
        return
    from cdc_core.operations import pipeline_run
    from cdc_core.operations.apply.replay import requeued

    extracted: Mapping[str, DrainResult] = {}
    queried: Queried | None = None
    with call.opened() as ready, driver(parsed, ready.store) as spark:
        if requeue is not None:
            selection = requeued(ready.meta, ready.store, requeue, targets[0] if target else None)
        if selection is not None:
            done = pipeline_run.replay(ready, spark, selection)
        elif staged:
            done = pipeline_run.apply(ready, spark, "cli", targets=targets)
        else:
            whole = pipeline_run.run(ready, spark, "cli", targets, until_us=until_us)
            done, extracted, queried = whole.applied, whole.extracted, whole.queried
    nothing = "no batch is staged there" if again else "every target has everything that is staged"
    _answer(call, done, extracted, nothing, queried)


def _repeat(call: PipelineCall, targets: list[str], every_s: float) -> None:
    """Whole runs, one after the other, with one Spark for all of them."""
    from cdc_core.operations.pipeline_run import run as run_whole

    partial_noted: set[str] = set()
    with call.opened() as ready, driver(call.pipeline, ready.store) as spark:
        numbers = itertools.count(1)

        def turn() -> None:
            begun = time.monotonic()
            try:
                whole = run_whole(ready, spark, f"every-{next(numbers)}", targets, partial_noted=partial_noted)
            finally:
                ready.progress.step("")
            done = whole.applied
            if done.summaries or done.lost:
                took_s = time.monotonic() - begun
                applied = f"{counted(done.batches, 'batch')}, {counted(done.rows, 'change')}, {took_s:.1f} s"
                document = {"pipeline": ready.name, **_document(done, whole.extracted, whole.queried)}
                call.output.line(document, f"{done.run_id}: {applied}")

        repeat(turn, every_s, call.output)


def repeat(work: Callable[[], None], every_s: float, output: CliOutput) -> None:
    """Does the work again, `every_s` after it last began, and at once if it took longer. A signal ends this, and the
    work under way, as success. An error that another attempt may fix is noted; any other is raised."""
    try:
        while True:
            due = time.monotonic() + every_s
            try:
                work()
            except LockstepError as error:
                if not error.retriable:
                    raise
                output.note(f"tried again in {every_s:g} s: {error}")
            time.sleep(max(due - time.monotonic(), 0.0))
    except (SystemExit, KeyboardInterrupt):
        return


@contextmanager
def driver(pipeline: Pipeline, store: ObjectStore, master: str | None = None) -> Iterator[Driver]:
    """The driver of a command's runs. What Spark prints goes to a file that is kept if the block fails.

    master: None for the pipeline's. Raises UsageError (install.missing).
    """
    from spark_jobs.driver import Driver

    with (
        _output(pipeline.pipeline) as spark_output,
        Driver(pipeline, store, master=master or pipeline.spark.master, output=spark_output) as made,
    ):
        yield made


def _answer(
    call: PipelineCall,
    done: RunResult,
    extracted: Mapping[str, DrainResult],
    nothing: str,
    queried: Queried | None,
) -> None:
    """nothing: why nothing was applied, if so. queried: what the reverse query has done."""
    document = _document(done, extracted, queried)
    if not done.summaries:
        call.answer(document, *(done.lost or [f"Nothing to apply: {nothing}."]))
        return
    ledgers = document["ledgers"]
    ledger = ledger_table(f"ledger of {done.run_id}", ledgers, call.pipeline.pipeline) if ledgers else []
    call.answer(
        document,
        *ledger,
        f"{counted(done.batches, 'batch')}, {counted(done.rows, 'change')}, by "
        + ("the driver alone" if done.by_driver else "Spark"),
        *done.lost,
    )


def _document(done: RunResult, extracted: Mapping[str, DrainResult], queried: Queried | None) -> dict[str, Any]:
    from cdc_core.operations.status_report import engine, ledger_document

    document = {
        "run_id": done.run_id,
        "extracted": [extracted_document(name, result) for name, result in extracted.items()],
        "batches": done.batches,
        "rows": done.rows,
        "by": engine(by_driver=done.by_driver),
        "targets": [summary.to_json() for summary in done.summaries],
        "ledgers": [ledger_document(row.entry) for row in done.ledgers],
        "lost": list(done.lost),
    }
    return document if queried is None else document | {"reverse_query": queried.to_json()}


def _selection(
    pipeline: Pipeline,
    targets: list[str],
    begin: list[str] | None,
    end: list[str] | None,
    tables: list[str] | None,
    *,
    replay: bool,
) -> Selection | None:
    """The selection of --replay and its options; None without it. Raises UsageError (usage.argument)."""
    from cdc_core.operations.apply.replay import Selection, places

    if not replay:
        if begin or end or tables:
            raise _usage("--from, --to and --table belong to a replay.", "add --replay, or leave them out")
        return None
    if len(targets) != 1:
        raise _usage("A replay has exactly one target.", f"give one --target of: {', '.join(targets) or '(none)'}")
    bounds = [_bound(texts or [], option) for texts, option in ((begin, "--from"), (end, "--to"))]
    (start_us, first), (end_us, last) = bounds
    return Selection(
        targets[0],
        start_us,
        end_us,
        places(pipeline, first, "--from"),
        places(pipeline, last, "--to"),
        tuple(dict.fromkeys(tables or ())),
    )


def _bound(texts: list[str], option: str) -> tuple[int | None, list[str]]:
    """At most one time, and batches."""
    times = [text for text in texts if "/" not in text]
    if len(times) > 1:
        raise _usage(f"{option} names two times.", "give one time, or one batch for each source")
    instead = "a batch that `lockstep stage ls` shows, or "
    return (time_us(times[0], option, instead) if times else None), [text for text in texts if "/" in text]


def _usage(what: str, remedy: str) -> UsageError:
    return UsageError(what, where="lockstep run", code="usage.argument", remedy=remedy)


@contextmanager
def _output(name: str) -> Iterator[Path]:
    """A file for what Spark prints, which is removed unless the block fails after Spark has begun to print."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-run-"))
    try:
        yield folder / f"lockstep-{name}.log"
    except BaseException:
        with suppress(OSError):  # not empty: errors name it
            folder.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)
