"""A batch being written: blocks in, Parquet parts and a manifest's text out. `manifest.commit` makes it count.

It may assume that blocks come in order, without gaps, and all belong to the batch's window. Keeps true: a batch
ends at a transaction's end (a transaction cut into PART entries streams into the open parts until its last piece);
when `finish` returns, every part is durable; what is aborted before, or fails, leaves nothing. Part names carry the
epoch, and are taken only where free, so that no writer ever touches a file that a manifest may list.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cdc_core.errors import InternalError, LockstepError, defect
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.block import Block, EntryKind, TableRows
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import DefinedSince
from cdc_core.stage.layout import PartName, manifest_path, part_path
from cdc_core.stage.manifest import parse
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.open_part import OpenPart, open_part
from cdc_core.stage.parquet import ROW_GROUP_BYTES, PartFile
from cdc_core.stage.unify import conflict

log = logging.getLogger(__name__)

_PUBLISHED_AT_ONCE = 4
_SETTLED_ALONE = 32
"""More parts than this are made durable together: by syncing the file system, or a bounded number at a time."""


class BatchWriter:
    """See the module's docstring.

    begin:       where the batch begins: the end of the one before.
    window:      start and end, µs UTC, of the interval it belongs to.
    level:       zstd level.
    row_group_buffer_bytes: weight of gathered rows over all tables at which the largest table's are written early; a
                 row group weighs half of it at most.
    scratch_dir: where parts grow that cannot grow in their final place (buckets); the system's by default.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        pipeline: str,
        source: str,
        epoch: int,
        begin: Checkpoint,
        window: tuple[int, int],
        level: int = 1,
        row_group_buffer_bytes: int = 2 * ROW_GROUP_BYTES,
        scratch_dir: Path | None = None,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._source = source
        self._epoch = epoch
        self._begin = begin
        self.window = window
        """Start and end, µs UTC; may be moved as long as there are no rows."""
        self._level = level
        self._row_group_buffer_bytes = row_group_buffer_bytes
        self._scratch = scratch_dir or Path(tempfile.gettempdir())
        self._parts: dict[tuple[str, str], OpenPart] = {}
        self._rows = 0
        self._written_bytes = 0
        self._pending_bytes = 0
        self._begun = False
        self._done = False
        self._finished: set[str] = set()
        self._carried_rows = 0
        self._events = 0
        self._transactions = 0
        self._left_out: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._definitions: list[DefinedSince] = []
        self.position = begin.position
        """The position after the last block that was added."""
        self.open_transaction = False
        """The last entry that was added is a PART: the batch cannot be finished here."""

    @property
    def rows(self) -> int:
        """Changes added; one routed to two tables counts twice."""
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes written, plus the weight of the rows gathered for the next row groups."""
        return self._written_bytes + self._pending_bytes

    def redefines(self, block: Block) -> bool:
        """Whether the block's rows have another key than the batch's rows of the table, or a column with a type without
        a common one with theirs."""
        return any(
            part.schema.key != rows.schema.key or conflict([part.schema, rows.schema])
            for rows in block.tables
            if rows.rows.num_rows and (rows.logical, rows.schema.id) not in self._parts
            for (logical, _), part in self._parts.items()
            if logical == rows.logical and part.schema.name == rows.schema.name
        )

    def add(self, block: Block) -> None:
        """Takes a block. After any error the batch can only be aborted.

        Raises InternalError (internal.defect) where the block does not continue the batch, and the store's errors.
        """
        if self._done or block.begin != self.position or block.source != self._source:
            raise self._wrong(f"A block of {block.source} at {block.begin} does not follow {self.position}.")
        self._begun = True
        for rows in block.tables:
            if rows.rows.num_rows:
                part = self._part_of(rows)
                with self._counting(part.file):
                    part.add(rows.rows)
                self._rows += rows.rows.num_rows
        self._account(block)
        self._relieve()
        self.position = block.end

    def finish(self, end: Checkpoint) -> Manifest:
        """Makes every part durable; the manifest to commit. On an error everything is aborted.

        end: where the batch ends: the end of the last block (any later position for a batch without blocks).
        Raises InternalError (internal.defect), also inside an open transaction, and the store's errors.
        """
        ends_right = end.position == self.position if self._begun else end.position > self.position
        if self._done or self.open_transaction or not ends_right or end.position == self._begin.position:
            inside = " inside a transaction" if self.open_transaction else ""
            raise self._wrong(f"It cannot end at {end.position}: its blocks end at {self.position}{inside}.")
        try:
            parts = self._publish()
        except BaseException:
            self._discard()
            raise
        self._done = True
        self._finished = {part.path for part in parts}
        manifest = Manifest(
            pipeline=self._pipeline,
            source=self._source,
            epoch=self._epoch,
            begin=self._begin,
            end=end,
            window_start_us=self.window[0],
            window_end_us=self.window[1],
            parts=parts,
            events=self._events,
            transactions=self._transactions,
            created_us=time.time_ns() // 1000,
            left_out=dict(self._left_out),
            notes=tuple(self._notes),
            definitions=tuple(self._definitions),
            schemas={part.schema.id: part.schema for part in self._parts.values()},
        )
        log.info(
            "source %s: batch %s holds %d changes in %d parts",
            self._source,
            manifest.batch_id,
            manifest.rows,
            len(parts),
        )
        return manifest

    def abort(self) -> None:
        """Removes the batch's files; may be called at any time, and more than once.

        After `finish` they are removed only if another writer's manifest has the batch's name. If ours has it, or may
        still arrive (an answer lost on the network), they stay: `sweep` removes them if it never does.
        """
        self._done = True
        if self._finished and not self._superseded():
            return
        self._discard()

    def _discard(self) -> None:
        self._done = True
        for part in self._parts.values():
            part.file.discard()

    def _superseded(self) -> bool:
        path = manifest_path(self._source, self._begin.position)
        try:
            standing = {part.path for part in parse(self._store.get(path), path, self._store.uri).parts}
        except LockstepError:
            return False
        return not standing & self._finished

    def _part_of(self, rows: TableRows) -> OpenPart:
        identity = (rows.logical, rows.schema.id)
        part = self._parts.get(identity)
        if part is None:
            # The window may still be open here; the path is made once the first row group is full.
            part = self._parts[identity] = open_part(
                self._store,
                rows.logical,
                rows.schema,
                PartName(self._source, self._begin.position.seq, self._epoch, len(self._parts)),
                lambda name: part_path(rows.logical, self.window[0], name),
                level=self._level,
                scratch=self._scratch,
                group_bytes=min(ROW_GROUP_BYTES, self._row_group_buffer_bytes // 2),
            )
        if not rows.rows.schema.equals(part.arrow):
            raise defect(
                f"Rows of {rows.schema.name} do not have the columns of their definition {rows.schema.id}.",
                where=f"{self._source} {self.position}",
                attach="the table's definition",
            )
        return part

    def _publish(self) -> tuple[Part, ...]:
        """Each is published as soon as it is closed, so that few files are open at a time; many are settled at once.

        Several threads only wait for disk or bucket: threads that encode take turns anyway, each with its own memory.
        """
        parts = list(self._parts.values())
        settled = len(parts) <= _SETTLED_ALONE
        if len(parts) < 2:
            for part in parts:
                part.file.close()
            return tuple(part.listed(part.file.publish(settled=settled)) for part in parts)
        paths: list[str] = []
        with ThreadPoolExecutor(min(_PUBLISHED_AT_ONCE, len(parts))) as pool:
            publishing: deque[Future[str]] = deque()
            for part in parts:
                part.file.close()
                if len(publishing) == _PUBLISHED_AT_ONCE:
                    paths.append(publishing.popleft().result())
                publishing.append(pool.submit(part.file.publish, settled=settled))
            paths += [future.result() for future in publishing]
        if not settled:
            self._store.settle(paths)
        return tuple(part.listed(path) for part, path in zip(parts, paths, strict=True))

    def _account(self, block: Block) -> None:
        entries = block.entries
        self._events += int(entries.events.sum())
        self._left_out.update(block.left_out)
        self._notes |= dict.fromkeys(block.notes)
        self._definitions += block.definitions
        whole = np.flatnonzero(entries.kind != EntryKind.PART)
        if len(whole):
            starts = np.concatenate(([0], whole[:-1] + 1))
            rows = np.add.reduceat(entries.rows, starts)
            rows[-1] -= entries.rows[whole[-1] + 1 :].sum()  # pieces of the next transaction
            rows[0] += self._carried_rows
            self._transactions += int(np.count_nonzero((rows > 0) & (entries.kind[whole] == EntryKind.TRANSACTION)))
            self._carried_rows = 0
        behind = int(whole[-1]) + 1 if len(whole) else 0
        self._carried_rows += int(entries.rows[behind:].sum())
        self.open_transaction = bool(len(entries) and entries.kind[-1] == EntryKind.PART)

    def _relieve(self) -> None:
        """Bounds memory where many tables gather at once."""
        while self._pending_bytes > self._row_group_buffer_bytes:
            largest = max(self._parts.values(), key=lambda part: part.file.pending_bytes).file
            with self._counting(largest):
                largest.flush()

    @contextmanager
    def _counting(self, file: PartFile) -> Iterator[None]:
        """Keeps the totals of all parts, which are asked for at every block: there may be thousands of parts."""
        written, pending = file.size_bytes, file.pending_bytes
        yield
        self._written_bytes += file.size_bytes - written
        self._pending_bytes += file.pending_bytes - pending

    def _wrong(self, what: str) -> InternalError:
        return defect(
            f"The batch that begins at {self._begin.position} was misused. {what}",
            where=self._source,
            first="the extractor resumes at the last staged position",
        )
