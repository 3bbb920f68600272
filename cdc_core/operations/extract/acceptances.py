"""Events that would stop a source, and that an operator accepts by file and offset.

An acceptance is recorded in the notes of the event's batch: accepting the same event again then changes nothing. An
event that was read without being accepted cannot be accepted afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cdc_core.errors import LockstepError, UsageError
from cdc_core.model.position import Position
from cdc_core.source.host import source_faults
from cdc_core.stage.manifest import chain
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)


def parse_place(text: str, *, where: str = "accept") -> tuple[str, int]:
    """`binlog.000012:4711`. Raises UsageError (usage.argument)."""
    file, _, digits = text.strip().rpartition(":")
    try:
        offset = int(digits) if digits.isascii() and digits.isdigit() else -1
        place = Position(0, file, offset)
    except (LockstepError, ValueError) as error:
        raise UsageError(
            f"{text!r} is not a position in a log.",
            where=where,
            code="usage.argument",
            remedy="copy FILE:OFFSET from the error that stopped the source, such as binlog.000012:4711",
        ) from error
    return place.file, place.offset


def pending(
    places: Iterable[tuple[str, int]], start: Position, store: ObjectStore, source: str
) -> tuple[tuple[str, int], ...]:
    """The places that are still ahead. Raises UsageError (usage.argument) for one that was read without acceptance."""
    left: list[tuple[str, int]] = []
    for place in places:
        at = Position(start.timeline, *place)
        if at >= start:
            left.append(place)
        elif _is_noted(at, store, source):
            log.info("%s: %s:%s has already been accepted", source, *place)
        else:
            raise source_faults.nothing_to_accept(f"{source}, {at.file}:{at.offset}, which is before {start}")
    return tuple(left)


def _is_noted(at: Position, store: ObjectStore, source: str) -> bool:
    words = source_faults.accepted_at(at.file, at.offset) + ":"
    return any(
        words in note for manifest in chain(store, source) if manifest.end.position > at for note in manifest.notes
    )
