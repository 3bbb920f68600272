"""Whether a target has changes that the stage has not: then what is staged would count as older than these for ever.

Two changes of one source compare by their places in its log. A log that was reset begins with low places again, and so
does a stage that is started over after a failover, which does not know how often the source's numbering has started.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_core.errors import DataAtRisk
from cdc_core.model.position import Position, above, place_of
from cdc_core.stage.manifest import newest
from cdc_core.stage.objects import ObjectStore


class StagedEnds:
    """How far each source is staged, which is asked for once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._ends: dict[str, Position | None] = {}

    def behind(self, latest: Mapping[str, int], table: str, target: str) -> DataAtRisk | None:
        """The error (target.ahead) for what a target has from places in the logs of its sources that are later than
        all that is staged of them. Everything that is staged would be stale there for ever."""
        for source, seq in latest.items():
            if source not in self._ends:
                last = newest(self._store, source)
                self._ends[source] = None if last is None else last.end.position
            end = self._ends[source]
            if end is not None and seq >= end.seq:
                return DataAtRisk(
                    f"The target has rows of {table!r} from {place_of(seq)} in the log of source {source!r}, and this "
                    f"stage has read that log only up to {end}.",
                    where=f"target {target}",
                    code="target.ahead",
                    remedy="if another stage feeds the table from the same log, stage more of it and run again. If the "
                    "log was reset, or the stage started over after a failover: every change would count as older than "
                    f"these rows. Set `timeline: {above(seq)}` for the source, then `lockstep extract "
                    f"PIPELINE --source {source} --abandon {end.file}:{end.offset}`, and run: all tables are copied "
                    "again",
                )
        return None
