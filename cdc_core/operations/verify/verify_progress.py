"""How far a verification is: what a killed one leaves for the next, as one document in meta, written after each range.

A table is verified range by range. What was found in the ranges so far is a `Tally`, which the next range is added to.
It must keep true that a verification continues only where it would do the same again: the same definition of the
pipeline, the same tables and mode, and tables whose definitions on both sides are the same (`definition`).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

from cdc_core.model.json_codec import dumped, parsed
from cdc_core.model.position import Position
from cdc_core.model.windows import age_us, from_us
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify.comparison import Difference
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.verify_job import VerifyJob, config_digest, digest

KEPT_BYTES = 4 << 20
"""Most that the keys of findings take in meta, of all tables of a verification."""


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Between which places of a source's log its rows were read: the lowest `low`, the highest `high`."""

    source: str
    low: Position
    high: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the ranges of a table have shown, but for the rows that differ.

    source_rows, target_rows: that were read. spans: of the sources. consumed_until: by source, up to where the target
    had consumed the staged batches before the first range was read. moving, unsettled: as in Verdict. found: how many
    rows differ, by what is wrong. skipped_rows: about how many rows of the source a sample left out. ranges: that were
    compared. seconds: that they took.
    """

    spans: tuple[SourceSpan, ...] = ()
    consumed_until: Mapping[str, str] = field(default_factory=dict)
    source_rows: int = 0
    target_rows: int = 0
    moving: int = 0
    unsettled: int = 0
    found: Mapping[str, int] = field(default_factory=dict)
    skipped_rows: int = 0
    ranges: int = 0
    seconds: float = 0.0


def figures_of(figures: Figures) -> dict[str, Any]:
    """The fields that all figures have, by name."""
    return {each.name: getattr(figures, each.name) for each in fields(Figures)}


@dataclass(frozen=True, slots=True)
class Tally(Figures):
    """What the ranges of a table so far have shown.

    definition: of what is compared, a digest. driver: number of the source table that cuts the ranges now. reached:
    the key up to which the table is verified, of that source table; () at the beginning. complete: nothing is left.
    first: the first differences.
    """

    definition: str
    driver: int = 0
    reached: Key = ()
    complete: bool = False
    first: tuple[Difference, ...] = ()

    @property
    def first_bytes(self) -> int:
        """What `first` takes in the document."""
        return sum(map(_bytes_of, self.first))

    def plus(self, other: Tally, *, most_first: int, most_bytes: int) -> Tally:
        """Both; what is reached, and its definition, are the other's. most_first, most_bytes: of the differences that
        are kept."""
        found = {name: self.found.get(name, 0) + other.found.get(name, 0) for name in {**self.found, **other.found}}
        return replace(
            other,
            ranges=self.ranges + other.ranges,
            skipped_rows=self.skipped_rows + other.skipped_rows,
            spans=joined(self.spans, other.spans),
            consumed_until={**other.consumed_until, **self.consumed_until},
            source_rows=self.source_rows + other.source_rows,
            target_rows=self.target_rows + other.target_rows,
            moving=self.moving + other.moving,
            unsettled=self.unsettled + other.unsettled,
            found=found,
            first=_first((self.first + other.first)[:most_first], most_bytes),
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """A verification under way.

    scope: what it is of: pipeline definition, mode, tables, a digest. started_us: when it began, µs UTC, by meta's
    clock. seed: of a sample. tables: by logical table that was begun.
    """

    scope: str
    started_us: int
    seed: int = 0
    tables: Mapping[str, Tally] = field(default_factory=dict)

    def with_table(self, table: str, tally: Tally) -> VerifyProgress:
        return replace(self, tables={**self.tables, table: tally})

    def to_text(self) -> str:
        return dumped(self).decode()

    @classmethod
    def from_text(cls, text: str) -> VerifyProgress | None:
        """None for what another version of Lockstep has written: its verification begins from the start."""
        try:
            return parsed(cls, text)
        except ValueError:
            return None


def _bytes_of(difference: Difference) -> int:
    return len(dumped(difference)) + len(",")


def _first(some: tuple[Difference, ...], most_bytes: int) -> tuple[Difference, ...]:
    """As many of the first as take no more than this."""
    sizes = accumulate(map(_bytes_of, some))
    return tuple(difference for difference, size in zip(some, sizes, strict=True) if size <= most_bytes)


def joined(some: Sequence[SourceSpan], more: Sequence[SourceSpan]) -> tuple[SourceSpan, ...]:
    """For each source, from the lowest to the highest place of both."""
    spans = {span.source: span for span in some}
    for span in more:
        kept = spans.get(span.source, span)
        spans[span.source] = SourceSpan(span.source, min(kept.low, span.low), max(kept.high, span.high))
    return tuple(spans[name] for name in sorted(spans))


def forget_found(job: VerifyJob, tables: Collection[str]) -> None:
    """Before rows of these tables are repaired: a verification that was interrupted begins those from the start in
    which it has found something, as it would count the repaired rows. Raises RetryLater (lease.lost)."""
    verification = job.meta.verifications.find(job.target.name)
    progress = VerifyProgress.from_text(verification.progress) if verification is not None else None
    if job.lease is None or progress is None:
        return
    left = {
        name: table
        for name, table in progress.tables.items()
        if name not in tables or not (table.found or table.unsettled)
    }
    job.meta.verifications.keep_progress(job.lease, job.target.name, replace(progress, tables=left).to_text())


class KeptProgress:
    """What is known of each table so far; without a lease it is not kept."""

    def __init__(self, job: VerifyJob, tables: Sequence[str]) -> None:
        self._job = job
        now_us = job.meta.now_us()
        seed = secrets.randbits(32) if job.seed is None else job.seed
        share = [job.share, job.seed] if job.mode is Mode.RANDOM else []
        scope = digest([config_digest(job.pipeline), job.mode, sorted(tables), share])
        self.progress = VerifyProgress(scope, now_us, seed)
        verification = job.meta.verifications.find(job.target.name) if job.lease is not None else None
        if verification is None or not verification.progress:
            return
        progress = VerifyProgress.from_text(verification.progress)
        resume_within = job.pipeline.verify.resume_within
        again = ""
        if progress is None or progress.scope != scope:
            again = "the pipeline's definition, the mode or the tables asked for were others"
        elif progress.started_us < job.begun_after_us:
            again = "you asked for it (--restart)"
        elif now_us - progress.started_us > age_us(resume_within):
            again = f"it began more than {resume_within} ago (verify.resume_within)"
        if again or progress is None:
            job.opened.progress.note(f"The verification that was interrupted begins from the start: {again}.")
            return
        self.progress = progress
        job.opened.progress.note(f"The verification of {from_us(progress.started_us):%Y-%m-%d %H:%M:%S} UTC continues.")

    def tally(self, table: str, definition: str) -> Tally:
        """What is known of a table; of none, or of one that is defined otherwise now, nothing."""
        tally = self.progress.tables.get(table)
        if tally is not None and tally.definition != definition:
            self._job.opened.progress.note(
                f"{table} begins from the start: it was redefined, or its target is at another address, since its "
                "verification was interrupted."
            )
            tally = None
        return tally or Tally(definition)

    def bytes_left(self, table: str) -> int:
        """What the keys of a table's findings may take beside those of other tables."""
        return KEPT_BYTES - sum(tally.first_bytes for name, tally in self.progress.tables.items() if name != table)

    def keep(self, table: str, tally: Tally) -> None:
        """Raises RetryLater (lease.lost)."""
        job = self._job
        self.progress = self.progress.with_table(table, tally)
        if job.lease is not None:
            job.meta.verifications.keep_progress(job.lease, job.target.name, self.progress.to_text())
