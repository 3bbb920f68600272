"""How far a verification is: what a killed one leaves for the next, as one document in meta.

A table is verified range by range. What was found in the ranges so far is a `Tally`, which the next range is added to.
It must keep true that a verification continues only where it would do the same again: the same definition of the
pipeline, the same tables and mode, and tables whose definitions on both sides are the same (`definition`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

from cdc_core.model.json_codec import UnknownVersion, dumped, parsed
from cdc_core.model.position import Position
from cdc_core.model.windows import age_us
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify.comparison import Difference, Side

VERSION = 1
NOTHING = Side(0, "")
_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Between which places of a source's log its rows were read: the lowest `low`, the highest `high`."""

    source: str
    low: Position
    high: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the ranges of a table have shown, but for the rows that differ.

    spans: of the sources. consumed_until: by source, up to where the target had consumed the staged batches before the
    first range was read. moving, unsettled: as in Verdict. found: how many rows differ, by what is wrong. skipped_rows:
    about how many rows of the source a sample left out. ranges: that were compared. seconds: that they took.
    """

    spans: tuple[SourceSpan, ...] = ()
    consumed_until: Mapping[str, str] = field(default_factory=dict)
    source: Side = NOTHING
    target: Side = NOTHING
    moving: int = 0
    unsettled: int = 0
    found: Mapping[str, int] = field(default_factory=dict)
    skipped_rows: int = 0
    ranges: int = 0
    seconds: float = 0.0


def figures_of(one: Figures) -> dict[str, Any]:
    """The fields that all figures have, by name."""
    return {each.name: getattr(one, each.name) for each in fields(Figures)}


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
            source=_sum(self.source, other.source),
            target=_sum(self.target, other.target),
            moving=self.moving + other.moving,
            unsettled=self.unsettled + other.unsettled,
            found=found,
            first=_first((self.first + other.first)[:most_first], most_bytes),
            seconds=self.seconds + other.seconds,
        )

    def judged_again(self, keys: Collection[str], again: Tally) -> Tally:
        """With what another look at these of its differences has shown."""
        looked = set(keys)
        now = {one.key: one for one in again.first if one.key in looked}
        found = dict(self.found)
        first = []
        for one in self.first:
            kept = now.get(one.key) if one.key in looked else one
            if kept is not one:
                found[one.wrong] -= 1
            if kept is not None:
                first.append(kept)
                if kept is not one:
                    found[kept.wrong] = found.get(kept.wrong, 0) + 1
        return replace(
            self,
            spans=joined(self.spans, again.spans),
            unsettled=self.unsettled + again.unsettled,
            found={wrong: count for wrong, count in found.items() if count},
            first=tuple(first),
            seconds=self.seconds + again.seconds,
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
        return dumped(self, version=VERSION).decode()

    @classmethod
    def from_text(cls, text: str) -> VerifyProgress | None:
        """None for what another version of Lockstep has written."""
        try:
            return parsed(cls, text, version=VERSION)
        except UnknownVersion:
            return None


def why_again(found: VerifyProgress, scope: str, now_us: int, resume_within: str) -> str:
    """Why a verification that was interrupted is not continued, for people; "" if it is."""
    if found.scope != scope:
        return "the pipeline's definition, the mode or the tables asked for were others"
    if now_us - found.started_us > age_us(resume_within):
        return f"it began more than {resume_within} ago (verify.resume_within)"
    return ""


def _bytes_of(one: Difference) -> int:
    return len(dumped(one)) + len(",")


def _first(some: tuple[Difference, ...], most_bytes: int) -> tuple[Difference, ...]:
    """As many of the first as take no more than this."""
    sizes = accumulate(map(_bytes_of, some))
    return tuple(one for one, size in zip(some, sizes, strict=True) if size <= most_bytes)


def joined(some: Sequence[SourceSpan], more: Sequence[SourceSpan]) -> tuple[SourceSpan, ...]:
    """By source, between the lowest and the highest place of both."""
    spans = {one.source: one for one in some}
    for one in more:
        known = spans.get(one.source, one)
        spans[one.source] = SourceSpan(one.source, min(known.low, one.low), max(known.high, one.high))
    return tuple(spans[name] for name in sorted(spans))


def _sum(one: Side, other: Side) -> Side:
    if not other.sum_ or not one.sum_:
        return Side(one.rows + other.rows, one.sum_ or other.sum_)
    return Side(one.rows + other.rows, f"{(int(one.sum_, 16) + int(other.sum_, 16)) % _MODULUS:032x}")
