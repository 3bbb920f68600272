"""A table's events in parts by key, so that memory holds one part: those of many changes wait in scratch files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
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
from cdc_core.stage.staged_events import FileOfEvents, file_events, may_change_key
from cdc_core.stage.table_files import TableFiles, begins_of

PART_ROWS, PART_BYTES = 1 << 22, 640 << 20
"""The most of a part: changes, and what they take in memory."""
_MOST_PARTS = 500
"""Each has an open file while the events are split."""
_READERS = 2
"""Files that are read at once, where memory holds all events."""
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")


def _readers(store: ObjectStore, files: TableFiles, rule: TableRule) -> Iterator[tuple[FileOfEvents, _Read]]:
    """Each file, with what reads its events."""
    begins = begins_of(files.manifests)

    def read(file: FileOfEvents, condition: pc.Expression | None) -> Iterator[pa.Table]:
        with unless_removed(store, begins, [file.part.path]):
            yield from file_events(store, file, rule, condition=condition)

    for file, condition in files.files():
        yield file, partial(read, file, condition)


_Read = Callable[[], Iterator[pa.Table]]


@contextmanager
def parts_of_events(store: ObjectStore, files: TableFiles, rule: TableRule) -> Iterator[Iterator[Iterable[pa.Table]]]:
    """The events of each part. Raises DataAtRisk (stage.damaged), RetryLater (stage.removed)."""
    rows, size = (sum(getattr(part.part, name) for part in files.parts) for name in ("rows", "plain_bytes"))
    count = min(max(-(-rows // PART_ROWS), -(-size // PART_BYTES)), _MOST_PARTS)
    if count < 2:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="events") as pool:
            each = pool.map(lambda reader: list(reader[1]()), _readers(store, files, rule))
            yield iter([chain.from_iterable(each)])
        return
    parts = Parts(count)
    if rule.fill:
        moving = [read for file, read in _readers(store, files, rule) if may_change_key(file, rule)]
        links = [key_links(events, rule) for read in moving for events in read()]
        parts = parts.with_links(np.concatenate([np.zeros((0, 2), np.uint64), *links]))
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        paths = [Path(folder) / f"{number}.arrow" for number in range(count)]
        with ExitStack() as stack:
            streams = [
                stack.enter_context(pa.ipc.new_stream(str(path), event_schema(rule), options=_COMPRESSION))
                for path in paths
            ]
            for _, read in _readers(store, files, rule):
                for events in read():
                    for number, piece in split(events, rule, parts):
                        streams[number].write_table(piece)
        yield (_read(path) for path in paths)


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            yield pa.Table.from_batches([batch])
    path.unlink()
