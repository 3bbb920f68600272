"""A moment of the past as the staged files know it: a time, or a position in the one source's log.

A time takes the changes that were committed at or before it, in windows that begin before it; a position those of the
transactions that begin before it. Keeps true: a moment that is not staged completely is refused, because its answer
would still change. So a time at which a window begins takes nothing of that window: the source is staged completely up
to there while changes of the same second, or late ones, are still to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import Refused, UsageError
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.staged_columns import SEQ, TS
from cdc_core.model.windows import from_us


@dataclass(frozen=True, slots=True)
class AsOf:
    """Exactly one of: a time in µs UTC, a position, and what a reader has read: by source, all up to a position, and of
    copied rows these batches, by their ids, because later ones may be staged at earlier places."""

    time_us: int | None = None
    position: Position | None = None
    read: Mapping[str, tuple[Position, frozenset[str]]] | None = None

    def of(self, source: str) -> AsOf:
        """The moment for the rows of a source, in those batches that `cut` leaves."""
        return self if self.read is None else AsOf(position=self.read[source][0])

    @property
    def expression(self) -> pc.Expression:
        """The condition on a change."""
        if self.position is not None:
            return pc.field(SEQ) < self.position.seq
        assert self.time_us is not None
        return pc.field(TS) <= pa.scalar(self.time_us, pa.timestamp("us", tz="UTC"))

    def may_have_later(self, source: str, part: Part) -> bool:
        """Whether a part of a batch that `cut` leaves may have changes after the moment."""
        place = self.of(source).position
        return place is None or part.max_seq >= place.seq

    def later(self, manifests: Iterable[Manifest]) -> dict[str, list[int]]:
        """For each source, the order keys where batches begin whose windows do not begin before the time, in order:
        what they have came later, whatever its own time is. Readers of files with rows of several batches leave it
        out."""
        found: dict[str, list[int]] = {}
        for manifest in manifests:
            if self.time_us is not None and manifest.window_start_us >= self.time_us and not manifest.copied:
                found.setdefault(manifest.source, []).append(manifest.begin.position.seq)
        return {source: sorted(places) for source, places in found.items()}

    def expression_of(self, end_seq: int | None) -> pc.Expression:
        """`expression`, of a file whose rows from an order key on are in later batches."""
        return self.expression if end_seq is None else self.expression & (pc.field(SEQ) < end_seq)

    def includes(self, seq: int, ts_us: int) -> bool:
        """Whether what happened at an order key, at a time, had happened by then."""
        if self.position is not None:
            return seq < self.position.seq
        assert self.time_us is not None
        return ts_us <= self.time_us

    def cut(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Without what is entirely after it, so that the definitions are those of the moment too."""
        if self.read is not None:
            known = [(manifest, *self.read[manifest.source]) for manifest in manifests if manifest.source in self.read]
            return [
                manifest
                for manifest, end, ids in known
                if (manifest.batch_id in ids if manifest.copied else manifest.begin.position < end)
            ]
        if self.position is None:
            time_us = self.time_us
            return [
                manifest
                for manifest in manifests
                if time_us is not None
                and manifest.window_start_us < time_us
                # Rows that were looked up may be of any moment before the batch: whether the table is whole does not
                # depend on them, so that nothing else keeps them from an earlier state.
                and not (manifest.by_key and manifest.end.watermark_us > time_us)
            ]
        seq = self.position.seq
        return [
            replace(manifest, parts=tuple(part for part in manifest.parts if part.min_seq < seq))
            for manifest in manifests
            if manifest.begin.position.seq < seq or (manifest.copied and manifest.end.position.seq == seq)
        ]

    def require_staged(self, checkpoints: Mapping[str, Checkpoint | None]) -> None:
        """Each source must be staged up to the moment. Raises Refused (stage.as_of), UsageError (usage.argument)."""
        if self.position is not None and len(checkpoints) > 1:
            raise UsageError(
                f"A position belongs to one source, and the pipeline has {len(checkpoints)}.",
                where=str(self.position),
                code="usage.argument",
                remedy="give a time instead",
            )
        for source, checkpoint in checkpoints.items():
            if checkpoint is None:
                reached, staged = None, False
            elif self.position is not None:
                reached, staged = str(checkpoint.position), self.position <= checkpoint.position
            else:
                reached = from_us(checkpoint.watermark_us).isoformat()
                staged = self.time_us is not None and self.time_us <= checkpoint.watermark_us
            if not staged:
                raise Refused(
                    f"Nothing of source {source} is staged."
                    if reached is None
                    else f"Source {source} is staged only up to {reached}, not up to the requested moment.",
                    where=str(self.position or from_us(self.time_us or 0).isoformat()),
                    code="stage.as_of",
                    remedy="extract up to it first: `lockstep extract PIPELINE --until TIME`",
                )

    def require_begun(self, manifests: Sequence[Manifest]) -> None:
        """Raises Refused (stage.as_of) if everything staged came later; for a moment that names no table yet."""
        if manifests and not self.cut(manifests):
            first = min(manifests, key=lambda manifest: manifest.begin.position.seq)
            begins = str(first.begin.position)
            if self.position is None:
                begins = (
                    f"{from_us(min(manifest.window_start_us for manifest in manifests)).isoformat()} (UTC), {begins}"
                )
            raise Refused(
                "The first batch begins after the requested moment.",
                where=str(self.position or from_us(self.time_us or 0).isoformat()),
                code="stage.as_of",
                remedy=f"ask for a moment after {begins}",
            )
