"""The rows that a run has for a shard table: written in one transaction, or, if there are many, in parts.

Each part is a write of its own (row_writer.py), one after the other: with its own lock, fence, layout and guard, and
its own transaction. A part has the next so many rows as they come. No key is in two parts, so that nothing depends on
where the parts are cut: a run that was killed after some parts writes all of them again, and the guard finds what is
there.

May assume that no two rows have one key. That is as safe as one transaction where the write of a row depends on nothing
but what the target has under its key; `why_whole` says where it depends on more.
The row of the shard's ledger counts the parts so far, and shows a whole write with the last of them (row_writer.note).
Each part after the first requires the row to be as the part before has left it: between two parts the server may have
failed over to one that lacks some, or the table may have been dropped and created again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from cdc_core.model.run_plan import MergeCounts, WriteCounts
from cdc_core.mysql.connections import SafeConnection, Server
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.tables.target_keys import may_be_twins
from cdc_core.targets.tables.unique_keys import may_collide
from cdc_core.targets.writing.load import Layout, LoadFile
from cdc_core.targets.writing.row_writer import Transact, write_shard
from cdc_core.targets.writing.shard_write import ShardResult, ShardWrite, WritePart


def why_whole(facts: TableFacts, layout: Layout, merged: MergeCounts, *, quarantine: bool) -> str:
    """Why all rows of a run must be written to the table in one transaction; "" if parts are as safe. merged: what the
    run has for the logical table."""
    reasons = {
        "it has no key": not layout.key,
        "its key may be spelled in several ways": may_be_twins(facts, layout.key),
        "it has a unique key beside the rows' own": may_collide(facts, layout),
        "it has triggers": bool(facts.triggers),
        "several source tables may feed it": layout.shared,
        "rows that it rejects are set aside, up to a limit for each shard": quarantine,
        # One part would remove the row from its old key before another has written it to its new one.
        "rows change their keys": merged.key_changes > 0,
        "a truncate, or a copy that takes the place of older rows, removes rows": bool(merged.truncates),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def write_rows(
    server: Server,
    write: ShardWrite,
    layout: Layout,
    batches: Iterable[pa.RecordBatch],
    scratch: Path,
    *,
    part_rows: int,
    transact: Transact | None = None,
    session: Callable[[], SafeConnection] | None = None,
) -> ShardResult | None:
    """Writes rows to a table; safe to repeat. None if there are none. scratch: a directory for the rows on their way.
    part_rows: how many rows a part has; 0: all rows in one transaction. Others, and errors: as write_shard; after an
    error the parts before it are written."""
    rows = _Rows(batches)
    whole: ShardResult | None = None
    mark = ""
    while rows.left:
        with LoadFile(scratch, layout, deletes_aside=True) as file:
            while rows.left and not (part_rows and file.rows == part_rows):
                file.add(rows.next(part_rows - file.rows if part_rows else None))
            if whole or rows.left:
                before, mark = mark, _next_mark(mark)
                write = replace(write, part=WritePart(rows.left, mark, whole.counts if whole else None, before))
            done = write_shard(server, write, file, transact=transact, session=session)
        whole = ShardResult(_sum(whole.counts, done.counts), (*whole.unfit, *done.unfit)) if whole else done
    return whole


def _next_mark(before: str) -> str:
    """The time, to the microsecond; later than the one before."""
    now = datetime.now(UTC).replace(tzinfo=None)
    if before:
        now = max(now, datetime.fromisoformat(before) + timedelta(microseconds=1))
    return now.isoformat(" ", "microseconds")


def _sum(before: WriteCounts, part: WriteCounts) -> WriteCounts:
    figures = ("written", "stale", "absent", "equal", "quarantined")
    return replace(part, **{name: getattr(before, name) + getattr(part, name) for name in figures})


class _Rows:
    """Rows of batches, cut in another way. `left`: there are more."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._head: pa.RecordBatch | None = next(self._batches, None)

    @property
    def left(self) -> bool:
        return self._head is not None

    def next(self, most: int | None) -> pa.RecordBatch:
        """The next rows, at least one."""
        assert self._head is not None
        taken = self._head.slice(0, most)
        rest = self._head.slice(taken.num_rows)
        self._head = rest if rest.num_rows else next(self._batches, None)
        return taken
