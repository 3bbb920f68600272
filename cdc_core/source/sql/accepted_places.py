"""Positions in the log that would stop the stream, and that an operator accepts.

It must keep true that nothing is accepted by mistake: a position at which nothing would have stopped is an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdc_core.errors import LockstepError
from cdc_core.source.host import source_faults


class AcceptedPlaces:
    """places: file and offset of the events. command: how an operator accepts one, without the FILE:OFFSET."""

    def __init__(
        self,
        source: str,
        places: Iterable[tuple[str, int]] = (),
        command: str = "lockstep extract PIPELINE --accept",
    ) -> None:
        self._source = source
        self._command = command
        self._places = frozenset(places)
        self.used: set[tuple[str, int]] = set()
        """The places at which something would have stopped."""

    def __contains__(self, place: tuple[str, int]) -> bool:
        # Also where it was already read: after a lost connection its transaction is read again.
        return place in self._places

    def use(self, place: tuple[str, int]) -> None:
        """Records that something would have stopped there."""
        self.used.add(place)

    def explain(self, error: LockstepError, place: tuple[str, int]) -> LockstepError:
        """The error that stops the stream at a place, with the command that accepts it."""
        remedy = f"{error.remedy}. Or accept this position, once you know what changed there: "
        remedy += f"`{self._command} {place[0]}:{place[1]}`"
        return error.with_remedy(remedy)

    def require_used(self) -> None:
        """Raises UsageError (usage.argument) for a place at which nothing would have stopped so far."""
        for file, offset in sorted(self._places - self.used):
            raise source_faults.nothing_to_accept(f"{self._source}, {file}:{offset}")
