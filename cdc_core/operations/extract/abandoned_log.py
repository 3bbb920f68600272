"""Giving up what a source's log has, or had, after the stored position: what an operator says when it cannot be read.

A batch without files leads from there to the current end of the log, under a new timeline, and its manifest says of
every captured table that changes of it are missing up to that end. So every table is copied again, as after any change
that the log does not carry, and rows that the source has no more are removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_core.errors import UsageError
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.source.host.table_survey import SourceSurvey
from cdc_core.stage.manifest import chain
from cdc_core.stage.objects import ObjectStore


def is_due(place: tuple[str, int], stored: Checkpoint | None, store: ObjectStore, source: str) -> bool:
    """Whether the log is still to be given up from a place (file, offset) on; False if that has been done.

    Raises UsageError (usage.argument) if it is not where reading stopped. Whether the log can be read from
    there on is not asked.
    """
    if stored is not None and (stored.position.file, stored.position.offset) == place:
        return True
    for batch in chain(store, source):
        begin = batch.begin.position
        led_on = batch.end.position.timeline > begin.timeline
        if led_on and (begin.file, begin.offset) == place:
            return False
    reached = "nothing is staged of it yet" if stored is None else f"it has been read up to {stored.position}"
    raise UsageError(
        f"The log of source {source!r} was not left at {place[0]}:{place[1]}: {reached}.",
        where="abandon",
        code="usage.argument",
        remedy="nothing has happened. Give the position that `lockstep status` shows for the source, and only if the "
        "log cannot be read from there on",
    )


def missed(coverages: Mapping[str, TableCoverage], survey: SourceSurvey, start: Checkpoint) -> dict[str, TableCoverage]:
    """The coverage of the captured tables once reading continues at `start`, before which changes were given up.

    survey: the tables that exist there, or a little later. One that is gone by then needs no copy.
    """
    place = start.position
    made: dict[str, TableCoverage] = {}
    for table, coverage in coverages.items():
        if not coverage.how.captured:
            continue
        gone = survey.complete and table not in survey.tables
        made[table] = TableCoverage(
            How.ABANDONED,
            place.seq - 1,
            survey.at_us,
            str(place),
            survey.tables.get(table),
            coverage.feeds,
            absent_seq=place.seq if gone else 0,
        )
    return made
