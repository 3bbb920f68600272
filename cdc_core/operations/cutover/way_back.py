"""How a cutover gets the pipeline in the other direction: a new one, with a file beside the pipeline's, or one that
exists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
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
from cdc_core.operations.cutover.work import Disturbed, Written, pair_of
from cdc_core.operations.extract.side_by_side import extract_sources
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.source.host.server_facts import end_position
from cdc_core.targets.bookkeeping.fence import bar

_CARRIED: dict[str, Any] = {"tables": True, "routes": True, "targets": True}
"""What of a pipeline file decides which rows are carried back, and where to."""
_FREE: dict[str, Any] = {
    "tables": {"on_unlogged_change", "on_definition", "on_truncate", "on_new", "on_unreadable"},
    "targets": {
        "__all__": {"on_missing_table": True, "sessions": True, "part_rows": True,
                    "tables": {"__all__": {"on_new_column"}}},
    },
}  # fmt: skip
"""But for what a person may choose in the file of a way back: errors of its runs advise it."""


@dataclass(frozen=True, slots=True)
class ExistingWayBack:
    """The pipeline by whose cutover the application came here. The old tables are its sources."""

    opened: OpenPipeline

    @property
    def name(self) -> str:
        return self.opened.name

    def check(self) -> None:
        """It was checked when it was the way there."""

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
            later = [one for one in meta.batches.find(source) if one.end > place and not one.copied]
            seen[source] = max((one.end for one in later), default=place)
        why = StagedTables(pipeline, pipeline.targets, meta).missed(places, self.opened.store)
        return Disturbed(f"of the old tables, {why}" if why else "", seen)

    def written(self, after: Mapping[str, Position]) -> Written:
        extract_sources(self.opened)
        meta = self.opened.meta
        batches = [one for source, place in after.items() for one in meta.batches.find(source) if one.end > place]
        return written_in(meta, self.opened.store, [one for one in batches if not one.copied])

    def preview(self) -> Pipeline:
        return self.opened.pipeline

    def arm(self, token: str) -> Mapping[str, str]:
        return {}

    def armed(self, starts: Mapping[str, str]) -> Pipeline:
        return self.opened.pipeline

    def keep_out(self) -> None:
        """The cutover by which the application came here has raised the fences."""

    def disarm(self, token: str) -> str:
        """Nothing was made."""
        return ""


class NewWayBack:
    """The file of the pipeline that carries rows of a target back."""

    def __init__(self, job: VerifyJob, file: Path) -> None:
        self.name = job.opened.name + config.WAY_BACK_SUFFIX
        self._job = job
        self._file = file
        self._reverse: Reverse | None = None

    def check(self) -> None:
        if self._reverse is None:
            with prover(self._job) as proving:
                self._reverse = reverse_of(
                    self._job.pipeline, self._job.target, origins_of(proving, self._job), self._job.opened.environ
                )
        if self._file.exists():
            self._existing(self._reverse)

    def disturbed(self, after: Mapping[str, Position] | None = None) -> Disturbed:
        """Nothing reads the logs of new tables before the application writes to them."""
        return Disturbed("", None)

    def written(self, after: Mapping[str, Position]) -> Written:
        return Written({}, "")

    def preview(self) -> Pipeline:
        reverse = self._checked()
        if self._file.exists():
            return self._existing(reverse)
        return config.parse(self._text(reverse), where=self._file.name)

    def arm(self, token: str) -> Mapping[str, str]:
        """Writes the file, with the ends of the servers' logs as they are now, if it is not there."""
        reverse = self._checked()
        if not self._file.exists():
            self._write(self._text(reverse, _mark(token)))
        return {one.name: _start(one) for one in self._existing(reverse).sources}

    def armed(self, starts: Mapping[str, str]) -> Pipeline:
        reverse = self._checked()
        if not self._file.exists():  # its ends of logs, now, would leave out what was written meanwhile
            self._write(reverse.text({name: Position.from_text(text) for name, text in starts.items()}))
        return self._existing(reverse)

    def keep_out(self) -> None:
        """Until the application is switched, Lockstep alone writes to the new tables. What a run would carry from
        there is older than the application's own rows in the old ones."""
        reverse = self._checked()
        owner = pair_of(self._job.opened.name, self.name)
        note = f"the application writes here until a cutover of {self._job.opened.name} leads it away"
        for target in _wanted(reverse).targets:
            bar(target, list(target.tables), self.name, note, owner)

    def disarm(self, token: str) -> str:
        """Removes the file if nothing was read by it yet."""
        if not self._file.exists() or _mark(token) not in self._file.read_text(encoding="utf-8"):
            return ""
        meta = self._job.meta.of(self.name)
        if all(meta.positions.checkpoint(one.name) is None for one in config.load(self._file).sources):
            self._file.unlink()
            return ""
        return (
            f"{self._file.name} stays: it was run meanwhile. Pause its runs: they are refused (target.fenced) until a "
            "cutover has switched the application, which will use it"
        )

    def _checked(self) -> Reverse:
        if self._reverse is None:
            self.check()
        assert self._reverse is not None
        return self._reverse

    def _write(self, text: str) -> None:
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self._file)

    def _existing(self, reverse: Reverse) -> Pipeline:
        found = config.load(self._file)
        if carried_by(found) != carried_by(_wanted(reverse)):
            raise Refused(
                f"{self._file} exists already, and carries other tables, or carries them differently.",
                where=str(self._file),
                code="cutover.way_back_differs",
                remedy="if it is from an earlier cutover, and the application was led back, remove this file and "
                "leave its stage where it is: the next way back continues there. Otherwise give it the sources, "
                "tables, routes and targets that this pipeline needs",
            )
        return found

    def _text(self, reverse: Reverse, mark: str = "") -> str:
        return reverse.text({one.name: self._end(one.reference) for one in reverse.sources}, mark)

    def _end(self, reference: str) -> Position:
        with connect(resolve(reference, self._job.opened.environ), where=reference) as connection:
            return end_position(connection, 0)


def _wanted(reverse: Reverse) -> Pipeline:
    """But for where its sources begin."""
    nowhere = {one.name: Position(0, "none.000001", 4) for one in reverse.sources}
    return Pipeline.model_validate(reverse.document(nowhere))


def origins_of(proving: Prover, job: VerifyJob) -> list[ReverseOrigin]:
    """Every table of a source that feeds the target."""
    environ = job.opened.environ
    return [
        ReverseOrigin(logical, source.name, reference_of(job.pipeline, source, environ), schema.database, schema.table)
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
    return document | {"sources": {one.name: one.connections for one in pipeline.sources}}
