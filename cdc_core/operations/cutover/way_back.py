"""How a cutover gets the pipeline in the other direction: a new one, with a file beside the pipeline's, or one that
exists."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from cdc_core import config
from cdc_core.config import Pipeline, Source
from cdc_core.errors import LockstepError, Refused
from cdc_core.model.position import Position
from cdc_core.mysql.connections import connect, resolve
from cdc_core.operations.cutover.old_log import written_in
from cdc_core.operations.cutover.proof import Prover, prover, reference_of
from cdc_core.operations.cutover.reverse import Reverse, ReverseOrigin, reverse_of
from cdc_core.operations.cutover.unstaged import StagedTables
from cdc_core.operations.cutover.work import Disturbed, WayBack, Written, pair_of
from cdc_core.operations.derived_pipeline import write
from cdc_core.operations.extract.side_by_side import extract_sources
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.source.host.server_facts import end_position
from cdc_core.targets.bookkeeping.fence import bar

_CARRIED: dict[str, Any] = {"tables": True, "routes": True, "targets": True}
"""What of a pipeline file decides which rows are carried back, and where to."""
_FREE: dict[str, Any] = {
    "tables": {"on_unlogged_change", "on_truncate", "on_new", "on_unreadable"},
    "targets": {
        "__all__": {"on_missing_table": True, "sessions": True, "part_rows": True,
                    "tables": {"__all__": {"on_new_column"}}},
    },
}  # fmt: skip
"""But for what a person may choose in the file of a way back: errors of its runs advise it."""


class ExistingWayBack(WayBack):
    """The pipeline by whose cutover the application came here, which checked it when it was the way there, and raised
    its fences. The old tables are its sources."""

    def __init__(self, opened: OpenPipeline) -> None:
        self.opened = opened

    @property
    def name(self) -> str:
        return self.opened.name

    def disturbed(self, after: Mapping[str, Position] | None = None) -> Disturbed:
        """Gates let TRUNCATE and DDL on the old tables pass: their log has these."""
        try:
            extract_sources(self.opened)
        except LockstepError as error:
            if after is not None:
                raise
            return Disturbed(f"the log of the old tables cannot be read to its end: {error}", None)
        meta, pipeline = self.opened.meta, self.opened.pipeline
        led = meta.cutovers.latest(self.name)
        reached = led.details.get("reached", {}) if led is not None else {}
        places = {source: Position.from_text(text) for source, text in reached.items()} if after is None else after
        seen: dict[str, Position] = {}
        for source, place in places.items():
            later = [batch for batch in meta.batches.find(source) if batch.end > place and not batch.copied]
            seen[source] = max((batch.end for batch in later), default=place)
        why = StagedTables(pipeline, pipeline.databases, meta).missed(places, self.opened.store)
        return Disturbed(f"of the old tables, {why}" if why else "", seen)

    def written(self, after: Mapping[str, Position]) -> Written:
        extract_sources(self.opened)
        meta = self.opened.meta
        batches = [batch for source, place in after.items() for batch in meta.batches.find(source) if batch.end > place]
        return written_in(meta, self.opened.store, [batch for batch in batches if not batch.copied])

    def preview(self) -> Pipeline:
        return self.opened.pipeline


class NewWayBack(WayBack):
    """The file of the pipeline that carries rows of a target back. Nothing reads the logs of the new tables before the
    application writes to them."""

    def __init__(self, job: VerifyJob, file: Path) -> None:
        self._job = job
        self._file = file

    @property
    def name(self) -> str:
        return self._job.opened.name + config.WAY_BACK_SUFFIX

    @cached_property
    def _reverse(self) -> Reverse:
        with prover(self._job) as proving:
            origins = origins_of(proving, self._job)
        pipeline = self._job.pipeline
        return reverse_of(pipeline, pipeline.database(self._job.target.name), origins)

    def check(self) -> None:
        self._existing()

    def preview(self) -> Pipeline:
        return self._existing() or config.parse(self._text(), where=self._file.name)

    def arm(self, token: str) -> Mapping[str, str]:
        """Writes the file, with the ends of the servers' logs as they are now, if it is not there."""
        if self._existing() is None:
            write(self._file, self._text(_mark(token)))
        return {source.name: _start(source) for source in config.load(self._file).sources}

    def armed(self, starts: Mapping[str, str]) -> Pipeline:
        if self._existing() is None:  # its ends of logs, now, would leave out what was written meanwhile
            write(self._file, self._reverse.text({name: Position.from_text(text) for name, text in starts.items()}))
        return config.load(self._file)

    def keep_out(self) -> None:
        """Until the application is switched, Lockstep alone writes to the new tables. What a run would carry from
        there is older than the application's own rows in the old ones."""
        owner = pair_of(self._job.opened.name, self.name)
        note = f"the application writes here until a cutover of {self._job.opened.name} leads it away"
        for target in _wanted(self._reverse).databases:
            bar(target, list(target.tables), self.name, note, owner)

    def disarm(self, token: str) -> str:
        """Removes the file if nothing was read by it yet."""
        if not self._file.exists() or _mark(token) not in self._file.read_text(encoding="utf-8"):
            return ""
        meta = self._job.meta.of(self.name)
        if all(meta.positions.checkpoint(source.name) is None for source in config.load(self._file).sources):
            self._file.unlink()
            return ""
        return (
            f"{self._file.name} stays: it was run meanwhile. Pause its runs: they are refused (target.fenced) until a "
            "cutover has switched the application, which will use it"
        )

    def _existing(self) -> Pipeline | None:
        """The pipeline of the file, if it is there. Raises Refused (cutover.way_back_differs)."""
        wanted = _wanted(self._reverse)
        existing = config.load(self._file) if self._file.exists() else None
        if existing is not None and carried_by(existing) != carried_by(wanted):
            raise Refused(
                f"{self._file} exists already, and carries other tables, or carries them differently.",
                where=str(self._file),
                code="cutover.way_back_differs",
                remedy="if it is from an earlier cutover, and the application was led back, remove this file and "
                "leave its stage where it is: the next way back continues there. Otherwise give it the sources, "
                "tables, routes and targets that this pipeline needs",
            )
        return existing

    def _text(self, mark: str = "") -> str:
        return self._reverse.text({source.name: self._end(source.reference) for source in self._reverse.sources}, mark)

    def _end(self, reference: str) -> Position:
        with connect(resolve(reference), where=reference) as connection:
            return end_position(connection, 0)


def _wanted(reverse: Reverse) -> Pipeline:
    """But for where its sources begin."""
    nowhere = {source.name: Position(0, "none.000001", 4) for source in reverse.sources}
    return Pipeline.model_validate(reverse.document(nowhere))


def origins_of(proving: Prover, job: VerifyJob) -> list[ReverseOrigin]:
    """Every table of a source that feeds the target."""
    return [
        ReverseOrigin(logical, source.name, reference_of(job.pipeline, source), schema.database, schema.table)
        for logical, feeding in proving.feeding.items()
        for source, schema in feeding
    ]


def _mark(token: str) -> str:
    return f" ({token})"


def _start(source: Source) -> str:
    """From where on a source of a way back is read."""
    start = source.start
    assert not isinstance(start, str)
    assert start.position is not None
    return str(Position(0, start.position.file, start.position.offset))


def carried_by(pipeline: Pipeline) -> dict[str, Any]:
    """Which rows a way back carries, and where to, as plain values that two files have in common."""
    document: dict[str, Any] = pipeline.model_dump(mode="json", include=_CARRIED, exclude=_FREE)
    return document | {"sources": {source.name: source.connections for source in pipeline.sources}}
