"""`lockstep extract`: from the sources' logs to staged files, without Airflow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
    moment_us,
)
from cdc_core.cli.output import CliOutput, duration, moment, size, table
from cdc_core.errors import AnotherProcess, UsageError
from cdc_core.windows import to_us
from cdc_core.words import counted, some_of

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.extract import DrainResult
    from cdc_core.meta import Meta

log = logging.getLogger(__name__)

FOREVER_US = 1 << 62
MOST_WARNINGS = 10
STAND_BY_S = 1.0
"""Pause between two checks whether the source is free."""
Progressed = Callable[["DrainResult"], None]


def register(app: typer.Typer) -> None:
    app.command()(extract)


def extract(
    pipeline: PipelineArgument,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
    ] = None,
    until: Annotated[
        str, typer.Option("--until", metavar="now|TIME", help="Read up to now, or up to an ISO 8601 time with a zone.")
    ] = "now",
    follow: Annotated[
        bool, typer.Option("--follow", help="Read until interrupted; wait while another extractor has a source.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="FILE:OFFSET",
            help="Continue past the event at this position, which stops the source; may be repeated.",
        ),
    ] = None,
    abandon: Annotated[
        str | None,
        typer.Option(
            "--abandon",
            metavar="FILE:OFFSET",
            help="Give up what the log has from this position on, where the source stopped: continue at the log's end, "
            "and have every table copied again.",
        ),
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Read the sources' logs, stage the changes, and return.

    \b
      lockstep extract shop --until now                    everything that is committed now
      lockstep extract shop --until 2026-11-21T04:00:00Z   waits if that time is in the future
      lockstep extract shop --follow                       until Ctrl-C
      lockstep extract shop --accept binlog.000012:4711    once you know what the statement there changed
      lockstep extract shop --abandon binlog.000012:4711   the log is purged, reset or damaged from there on

    Starts where the last extract ended, here or in Airflow. If several commands follow one source, one reads and the
    others wait; one of them takes over when the reader's lease ends (`limits.lease_s` after it died). After an
    interrupt (Ctrl-C, SIGTERM), it stages what it has received, up to the last whole transaction, and releases the
    source.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], source, "source")
    until_us = moment_us(until)
    if follow:
        if until != "now":
            raise UsageError(
                "--follow reads until it is interrupted; --until says where to end.",
                where="lockstep extract",
                code="usage.argument",
                remedy="give one of the two",
            )
        until_us = FOREVER_US
    accepted = _places("--accept", accept or [], names)
    abandoned = _places("--abandon", [] if abandon is None else [abandon], names)
    results = extract_sources(
        parsed, names, until_us, output, endless=follow, accept=accepted, abandon=abandoned[0] if abandoned else None
    )
    document = {"pipeline": parsed.pipeline, "sources": [describe(name, result) for name, result in results]}
    columns = ("source", "rows", "batches", "files", "size", "position", "complete up to (UTC)", "lag")
    rows = [
        (
            name, result.staged.rows, result.staged.batches, result.staged.files, size(result.staged.size_bytes),
            result.position, moment(result.watermark_us), "unknown" if lag_s is None else duration(lag_s),
        )
        for name, result in results
        for lag_s in [_lag_s(result)]
    ]  # fmt: skip
    output.answer(document, table("staged", columns, rows, numbers=("rows", "batches", "files", "size", "lag")))
    warn_of_partial(output, parsed.pipeline, results)


def warn_of_partial(output: CliOutput, pipeline: str, results: list[tuple[str, DrainResult]]) -> None:
    """Notes which tables lack rows in the staged files."""
    from cdc_core.meta.health import missed
    from cdc_core.model.coverage import How, lacks

    partial = [
        (which, name, one) for name, result in results for which, one in missed(pipeline, result.partial).items()
    ]
    for which, name, one in partial:
        if one.gone:
            output.note(f"partial: {lacks(which, name, one)}, and the source has the table no more")
    due = [found for found in partial if not found[2].gone]
    existing = [found for found in due if found[2].how is How.EXISTING and not found[2].cascaded]
    if len(existing) > 1:  # of an existing database all of them: the same is said of each
        due = [found for found in due if found[2].how is not How.EXISTING or found[2].cascaded]
        named = [which if one.rows is None else f"{which} (~{counted(one.rows, 'row')})" for which, _, one in existing]
        output.note(f"partial: rows from before their capture are not captured: {some_of(named, MOST_WARNINGS)}")
    for which, name, one in due[:MOST_WARNINGS]:
        output.note(f"partial: {lacks(which, name, one)}")
    if existing or due:
        more = f" (and {len(due) - MOST_WARNINGS:,} more: `lockstep status`)" if len(due) > MOST_WARNINGS else ""
        output.note(
            f"The staged files do not contain these tables' states{more}: `lockstep snapshot` copies the tables."
        )


def _places(option: str, texts: list[str], names: list[str]) -> tuple[tuple[str, int], ...]:
    from cdc_core.extract.acceptances import parse_place

    if texts and len(names) != 1:
        raise UsageError(
            f"{option} names a position in the log of one source, but there are {len(names)} sources.",
            where="lockstep extract",
            code="usage.argument",
            remedy="add --source NAME",
        )
    return tuple(parse_place(text, where=option) for text in texts)


def describe(name: str, result: DrainResult) -> dict[str, Any]:
    """The progress of a source's extract, for --json."""
    staged, lag_s = result.staged, _lag_s(result)
    return {
        "source": name,
        "done": result.done,
        "rows": staged.rows,
        "events": staged.events,
        "batches": staged.batches,
        "files": staged.files,
        "size_bytes": staged.size_bytes,
        "position": result.position.to_json(),
        "complete_to": moment(result.watermark_us),
        "lag_s": None if lag_s is None else round(lag_s, 3),
        "partial": {table: one.to_json() for table, one in result.partial.items()},
    }


def _lag_s(result: DrainResult) -> float | None:
    """None without a watermark."""
    if not result.watermark_us:
        return None
    return (to_us(datetime.now(UTC)) - result.watermark_us) / 1e6


def extract_sources(
    pipeline: Pipeline,
    names: list[str],
    until_us: int | None,
    output: CliOutput,
    *,
    endless: bool = False,
    accept: tuple[tuple[str, int], ...] = (),
    abandon: tuple[str, int] | None = None,
) -> list[tuple[str, DrainResult]]:
    """Drain the sources side by side, a thread each, until all are done, one fails, or a signal comes.

    The first error is raised after the other threads have ended. A signal counts as success only if `endless`.
    """
    import cdc_core.extract  # noqa: F401 - for the threads
    from cdc_core.meta import Meta

    latest: dict[str, DrainResult] = {}
    errors: list[BaseException] = []
    stop = threading.Event()
    interrupted: BaseException | None = None
    # Thread.join must not be interrupted: until Python 3.13 it then treats a running thread as ended.
    ended = {name: threading.Event() for name in names}
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta, _watch(output, names) as watch:

        def work(name: str) -> None:
            def progressed(result: DrainResult) -> None:
                latest[name] = result
                watch(name, result)
                if stop.is_set():
                    raise SystemExit  # what has come is staged first

            try:
                drain = partial(_drain, pipeline, name, meta, until_us, progressed, accept, abandon)
                while not (_stand_by(drain, name, stop) if endless else drain()):
                    pass
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                errors.append(error)
                stop.set()
            finally:
                ended[name].set()

        for name in names:
            threading.Thread(target=work, args=(name,), name=f"extract-{name}", daemon=True).start()
        while not all(one.is_set() for one in ended.values()):
            try:
                for one in ended.values():
                    one.wait(timeout=0.2)
            except (KeyboardInterrupt, SystemExit) as signalled:
                interrupted = signalled
                stop.set()
    for error in errors:
        # A thread has left: nobody else knows that its source is not drained, unless this thread had it leave.
        if interrupted is None or not isinstance(error, SystemExit):
            raise error
    if interrupted is not None and not endless:
        raise interrupted
    return [(name, latest[name]) for name in names if name in latest]


def _drain(
    pipeline: Pipeline,
    name: str,
    meta: Meta,
    until_us: int | None,
    progressed: Progressed,
    accept: tuple[tuple[str, int], ...],
    abandon: tuple[str, int] | None,
) -> bool:
    from cdc_core.extract import Extractor
    from cdc_core.extract.outcome import keep_failure

    try:
        with Extractor(pipeline, name, meta=meta, accept=accept, abandon=abandon) as extractor:
            progressed(extractor.drain(until_us=until_us, progress=progressed))
    except Exception as error:
        keep_failure(meta, pipeline.pipeline, name, error)
        raise
    return True


def _stand_by(drain: Callable[[], bool], name: str, stop: threading.Event) -> bool:
    """Drain; False, after a pause, if another extractor has the source, or has taken it over."""
    try:
        return drain()
    except AnotherProcess as error:
        log.info("%s: waiting: %s", name, error)
    return stop.wait(STAND_BY_S)


def _watch(output: CliOutput, names: list[str]) -> AbstractContextManager[Callable[[str, DrainResult], None]]:
    if not output.animated:
        return nullcontext(lambda name, result: None)
    return _Bars(output, names)


class _Bars:
    """One line per source on the terminal: what is staged so far, and the position in the log."""

    def __init__(self, output: CliOutput, names: list[str]) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[reached]}"),
            TimeElapsedColumn(), console=output.err, transient=True,
        )  # fmt: skip
        self._tasks = {name: self._progress.add_task(name, total=None, reached="connecting") for name in names}

    def __enter__(self) -> Callable[[str, DrainResult], None]:
        self._progress.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _update(self, name: str, result: DrainResult) -> None:
        staged = result.staged
        reached = f"{counted(staged.rows, 'row')} in {counted(staged.batches, 'batch')}, up to {result.position}"
        self._progress.update(self._tasks[name], reached=reached)
