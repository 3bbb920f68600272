"""Extracts the sources of a pipeline side by side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cdc_core.errors import AnotherProcess, TableUnready
from cdc_core.model.position import Position
from cdc_core.model.windows import to_us
from cdc_core.operations.extract.drained import DrainResult
from cdc_core.operations.extract.extractor import Extractor
from cdc_core.operations.extract.outcome import keep_failure
from cdc_core.operations.open_pipeline import OpenPipeline

log = logging.getLogger(__name__)

STAND_BY_S = 1.0
"""Pause between two checks whether the source is free."""


def extract_sources(
    opened: OpenPipeline,
    sources: Sequence[str] | None = None,
    *,
    until_us: int | None = None,
    budget_s: float | None = None,
    endless: bool = False,
    accept: tuple[tuple[str, int], ...] = (),
    abandon: tuple[str, int] | None = None,
) -> dict[str, DrainResult]:
    """Drains these sources, or all, a thread each, until all are done, one fails, or a signal comes.

    until_us: None for everything that is committed now. budget_s: the longest time it reads. accept, abandon: as for
    `Extractor`. The first error is kept in meta, and raised after the other threads have ended. A signal counts as
    success only if `endless`, which also waits while another extractor has a source.
    """
    names = [source.name for source in opened.pipeline.sources] if sources is None else list(sources)
    latest: dict[str, DrainResult] = {}
    errors: list[BaseException] = []
    stop = threading.Event()
    interrupted: BaseException | None = None
    # Thread.join must not be interrupted: until Python 3.13 it then treats a running thread as ended.
    ended = {name: threading.Event() for name in names}
    with opened.progress.extracting(names) as report:

        def drain(name: str) -> bool:
            def progressed(result: DrainResult) -> None:
                latest[name] = result
                report(name, result)
                if stop.is_set():
                    raise SystemExit  # what has come is staged first

            try:
                with Extractor(opened, name, accept=accept, abandon=abandon) as extractor:
                    progressed(extractor.drain(until_us=until_us, budget_s=budget_s, progress=progressed))
            except Exception as error:
                keep_failure(opened, name, error)
                raise
            return True

        def work(name: str) -> None:
            try:
                while not (_stand_by(drain, name, stop) if endless else drain(name)):
                    pass
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                errors.append(error)
                stop.set()
            finally:
                ended[name].set()

        for name in names:
            threading.Thread(target=work, args=(name,), name=f"extract-{name}", daemon=True).start()
        while not all(event.is_set() for event in ended.values()):
            try:
                for event in ended.values():
                    event.wait(timeout=0.2)
            except (KeyboardInterrupt, SystemExit) as signalled:
                interrupted = signalled
                stop.set()
    for error in errors:
        # A thread has left: nobody else knows that its source is not drained, unless this thread had it leave.
        if interrupted is None or not isinstance(error, SystemExit):
            raise error
    if interrupted is not None and not endless:
        raise interrupted
    return {name: latest[name] for name in names if name in latest}


def extract_if_free(opened: OpenPipeline, source: str, *, budget_s: float | None = None) -> bool:
    """Extracts a source up to now; False if another extractor has it. Raises as `extract_sources`."""
    try:
        extract_sources(opened, [source], budget_s=budget_s)
    except AnotherProcess as error:
        log.info("%s: another extractor has the source: %s", source, error.what)
        return False
    return True


def extract_up_to(opened: OpenPipeline, source: str, place: Position, wait_s: float, *, where: str) -> None:
    """Until everything that the source has logged before a place is staged, by this process or another.

    Raises RetryLater (stage.behind), and as `extract_sources`.
    """
    deadline_s = time.monotonic() + wait_s
    while (staged := opened.meta.positions.checkpoint(source)) is None or staged.position < place:
        if time.monotonic() > deadline_s:
            raise TableUnready(
                f"{source} was read up to {place}, and the stage did not reach that within {wait_s:.0f} s.",
                where=where,
                code="stage.behind",
                remedy="check in `lockstep status` that the source is extracted; then try again",
            )
        if not extract_if_free(opened, source):
            time.sleep(STAND_BY_S)


def lag_s(result: DrainResult) -> float | None:
    """For how long the source has been ahead of what is staged, in seconds; None without a watermark."""
    if not result.watermark_us:
        return None
    return (to_us(datetime.now(UTC)) - result.watermark_us) / 1e6


def _stand_by(drain: Callable[[str], bool], name: str, stop: threading.Event) -> bool:
    """Drains; False, after a pause, if another extractor has the source, or has taken it over."""
    try:
        return drain(name)
    except AnotherProcess as error:
        log.info("%s: waiting: %s", name, error)
    return stop.wait(STAND_BY_S)
