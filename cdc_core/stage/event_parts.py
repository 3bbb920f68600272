"""A table's events in parts by key, so that memory holds one part: those of many changes wait in scratch files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.events import event_schema
from cdc_core.history.parts import Parts, key_links, split
from cdc_core.history.rule import TableRule
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.removed import unless_removed
from cdc_core.stage.staged_events import FileOfEvents, file_events
from cdc_core.stage.table_files import TableFiles, begins_of

PART_ROWS, PART_BYTES = 1 << 22, 160 << 20
"""Of a part: its changes, and their share of the staged files."""
_MOST_PARTS = 500
"""Each has an open file while the events are split."""
_READERS = 2
"""Files that are read at once, where memory holds all events."""
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")


def events_of(store: ObjectStore, files: TableFiles, rule: TableRule) -> Iterator[pa.Table]:
    """All events of the table. Raises DataAtRisk (stage.missing, stage.damaged), RetryLater (stage.removed)."""
    for one in files.files():
        yield from _events_of(store, files, one, rule)


def _events_of(
    store: ObjectStore, files: TableFiles, one: tuple[FileOfEvents, pc.Expression | None], rule: TableRule
) -> Iterator[pa.Table]:
    file, condition = one
    with unless_removed(store, begins_of(files.manifests), [file.part.path]):
        yield from file_events(store, file, rule, condition=condition)


@contextmanager
def parts_of_events(store: ObjectStore, files: TableFiles, rule: TableRule) -> Iterator[Iterator[Iterable[pa.Table]]]:
    """The events of each part. Raises what `events_of` does."""
    rows, size = (sum(getattr(one.part, name) for one in files.parts) for name in ("rows", "size_bytes"))
    count = min(max(-(-rows // PART_ROWS), -(-size // PART_BYTES)), _MOST_PARTS)
    if count < 2:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="events") as pool:
            each = pool.map(lambda one: list(_events_of(store, files, one, rule)), files.files())
            yield iter([chain.from_iterable(each)])
        return
    parts = Parts(count)
    if rule.fill:
        parts = parts.with_links(np.concatenate([key_links(some, rule) for some in events_of(store, files, rule)]))
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        paths = [Path(folder) / f"{number}.arrow" for number in range(count)]
        with ExitStack() as stack:
            streams = [
                stack.enter_context(pa.ipc.new_stream(str(path), event_schema(rule), options=_COMPRESSION))
                for path in paths
            ]
            for events in events_of(store, files, rule):
                for number, piece in split(events, rule, parts):
                    streams[number].write_table(piece)
        yield (_read(path) for path in paths)


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            yield pa.Table.from_batches([batch])
    path.unlink()
