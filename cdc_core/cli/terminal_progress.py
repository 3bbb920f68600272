"""The progress of an operation on stderr: notes, and on a terminal one line that says what is being done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.text import Text

from cdc_core.cli.output import CliOutput
from cdc_core.model.readable import counted
from cdc_core.operations.copy.copy_progress import CopyProgress
from cdc_core.operations.open_pipeline import Progress

if TYPE_CHECKING:
    from rich.status import Status

    from cdc_core.meta import TableCopy
    from cdc_core.operations.extract.drained import DrainResult

NOTE_S = 10.0
"""Between two reports of a copy's progress without a line."""


class TerminalProgress(Progress):
    """A context manager: leaving it clears the line. Threads may share it. line: False for notes only."""

    def __init__(self, output: CliOutput, *, line: bool = True) -> None:
        self._output = output
        self._animated = line and output.animated
        self._status: Status | None = None
        self._changing = threading.Lock()

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.step("")

    def note(self, text: str) -> None:
        self._output.note(text)

    def step(self, name: str) -> None:
        """Shows this on the line; "" clears it."""
        with self._changing:
            if self._status is not None and name:
                self._status.update(Text(name))
            elif self._status is not None:
                self._status.stop()
                self._status = None
            elif name and self._animated:
                self._status = self._output.err.status(Text(name))
                self._status.start()

    def extracting(self, sources: Sequence[str]) -> AbstractContextManager[Callable[[str, DrainResult], None]]:
        def show(source: str, result: DrainResult) -> None:
            rows, batches = counted(result.staged.rows, "row"), counted(result.staged.batches, "batch")
            self.step(f"{source}: {rows} in {batches}, up to {result.position}")

        return nullcontext(show)

    def copying(self, rows: Mapping[str, int | None]) -> AbstractContextManager[Callable[[TableCopy], None]]:
        progress, next_s = CopyProgress(), [time.monotonic() + NOTE_S]

        def show(copy: TableCopy) -> None:
            text = f"{copy.table}: {progress.text(copy)}"
            if self._animated:
                self.step(text)
            elif time.monotonic() >= next_s[0]:
                next_s[0] = time.monotonic() + NOTE_S
                self.note(text)

        return nullcontext(show)

    def comparing(self) -> AbstractContextManager[Callable[[str, str, int], None]]:
        return nullcontext(lambda table, side, rows: self.step(f"{table}, {side}: {counted(rows, 'row')}"))
