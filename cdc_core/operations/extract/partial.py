"""Says which captured tables lack rows on the stage."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_core.meta.health import missed
from cdc_core.model.coverage import How, lacks
from cdc_core.model.readable import counted, some_of
from cdc_core.operations.extract.drained import DrainResult
from cdc_core.operations.open_pipeline import OpenPipeline

MOST_NOTES = 10


def note_partial(opened: OpenPipeline, extracted: Mapping[str, DrainResult]) -> None:
    """Notes which tables lack rows in the staged files."""
    note = opened.progress.note
    partial = [
        (which, source, coverage)
        for source, result in extracted.items()
        for which, coverage in missed(opened.name, result.partial).items()
    ]
    for which, source, coverage in partial:
        if coverage.gone:
            note(f"partial: {lacks(which, source, coverage)}, and the source has the table no more")
    due = [table for table in partial if not table[2].gone]
    existing = [table for table in due if table[2].how is How.EXISTING and not table[2].cascaded]
    if len(existing) > 1:  # of an existing database all of them: the same is said of each
        due = [table for table in due if table[2].how is not How.EXISTING or table[2].cascaded]
        named = [
            which if coverage.rows is None else f"{which} (~{counted(coverage.rows, 'row')})"
            for which, _, coverage in existing
        ]
        note(f"partial: rows from before their capture are not captured: {some_of(named, MOST_NOTES)}")
    for which, source, coverage in due[:MOST_NOTES]:
        note(f"partial: {lacks(which, source, coverage)}")
    if existing or due:
        more = f" (and {len(due) - MOST_NOTES:,} more: `lockstep status`)" if len(due) > MOST_NOTES else ""
        note(f"The staged files do not contain these tables' states{more}: `lockstep snapshot` copies the tables.")
