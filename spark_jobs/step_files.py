"""The Parquet files that a task of a step writes for the steps after it, made durable together as the task ends.

A file has its final name from the start, and counts only once the driver has written the step's counts.json, which
names it: that is after all tasks. So a task that writes thousands of small files asks the disk once.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from cdc_core.stage.objects import ObjectStore, PartOutput
from spark_jobs.spark_failures import carried

_ALONE = 8
"""The first ones of a task are made durable each for itself: what makes many durable waits for all that the disk has to
write, whoever wrote it."""
_BUFFER = 1 << 20


class StepFiles:
    """Of one task; its threads may share them. A context manager: a block that ends without an error leaves its files
    durable."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._paths: list[str] = []

    def __enter__(self) -> StepFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with carried():
                self._store.settle(self._paths[_ALONE:])

    def write(self, folder: str, write: Callable[[Any], None]) -> str:
        """A file with what `write` puts into the file object that it is given; its path."""
        names = (f"{folder}/part-{uuid.uuid4().hex}.parquet" for _ in count())
        output = self._store.open_output(names, Path(tempfile.gettempdir()))
        try:
            file = _StepFile(output)
            write(file)
            file.flush()
            path = output.publish(settled=len(self._paths) < _ALONE)
        except BaseException:
            output.discard()
            raise
        self._paths.append(path)
        return path


class _StepFile:
    """What the Parquet writer writes to: it writes many small pieces."""

    def __init__(self, output: PartOutput) -> None:
        self._output = output
        self._buffer = bytearray()
        self._size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        size = len(data)
        self._size_bytes += size
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self.flush()
        return size

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        if self._buffer:
            self._output.write(memoryview(self._buffer))
            self._buffer = bytearray()

    def close(self) -> None:
        self.closed = True
