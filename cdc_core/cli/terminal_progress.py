"""The progress of an operation on stderr: notes, and on a terminal bars and the task that a run is at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdc_core.cli.output import CliOutput
from cdc_core.model.readable import counted
from cdc_core.operations.copy.copy_progress import CopyProgress, rows_in_all
from cdc_core.operations.open_pipeline import Progress

if TYPE_CHECKING:
    from rich.status import Status

    from cdc_core.meta import TableCopy
    from cdc_core.operations.extract.drained import DrainResult

NOTE_S = 10.0
"""Between two reports of a copy's progress without a terminal."""


class TerminalNotes(Progress):
    """Notes only."""

    def __init__(self, output: CliOutput) -> None:
        self._output = output

    def note(self, text: str) -> None:
        self._output.note(text)


class TerminalProgress(TerminalNotes):
    """Notes, bars, and the name of a run's task. A context manager: leaving it clears the line of the task."""

    def __init__(self, output: CliOutput) -> None:
        super().__init__(output)
        self._status: Status | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def step(self, name: str) -> None:
        if not name:
            self.clear()
        if not name or not self._output.animated:
            return
        if self._status is None:
            self._status = self._output.err.status(name)
            self._status.start()
        self._status.update(name)

    @contextmanager
    def extracting(self, sources: Sequence[str]) -> Iterator[Callable[[str, DrainResult], None]]:
        """A line per source: what is staged so far, and the position in the log."""
        if not self._output.animated:
            yield lambda source, result: None
            return
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        text = TextColumn("{task.description}"), TextColumn("{task.fields[reached]}")
        with self._bars(SpinnerColumn(), *text, TimeElapsedColumn()) as bars:
            tasks = {source: bars.add_task(source, total=None, reached="connecting") for source in sources}

            def update(source: str, result: DrainResult) -> None:
                staged = result.staged
                rows, batches = counted(staged.rows, "row"), counted(staged.batches, "batch")
                bars.update(tasks[source], reached=f"{rows} in {batches}, up to {result.position}")

            yield update

    @contextmanager
    def copying(self, rows: Mapping[str, int | None]) -> Iterator[Callable[[TableCopy], None]]:
        """A bar for each table that is being read; without a terminal, a line every NOTE_S."""
        progress = CopyProgress()
        if not self._output.animated:
            next_s = [time.monotonic() + NOTE_S]

            def report(copy: TableCopy) -> None:
                if time.monotonic() >= next_s[0]:
                    next_s[0] = time.monotonic() + NOTE_S
                    self.note(f"{copy.table}: {progress.text(copy)}")

            yield report
            return
        from rich.progress import BarColumn, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        tasks: dict[str, Any] = {}
        with self._bars(*columns) as bars:

            def update(copy: TableCopy) -> None:
                if copy.table not in tasks:
                    tasks[copy.table] = bars.add_task(copy.table, total=None, text="")
                total = rows_in_all(copy) or None
                bars.update(tasks[copy.table], completed=copy.rows, total=total, text=progress.text(copy))

            yield update

    @contextmanager
    def comparing(self) -> Iterator[Callable[[str, str, int], None]]:
        """A line with what is being read."""
        if not self._output.animated:
            yield lambda table, side, rows: None
            return
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bars:
            task = bars.add_task("", total=None)
            yield lambda table, side, rows: bars.update(task, description=f"{table}, {side}: {counted(rows, 'row')}")

    def _bars(self, *columns: Any) -> Any:
        """Only one of bars and the line of a task can be shown at a time."""
        from rich.progress import Progress as Bars

        self.clear()
        return Bars(*columns, console=self._output.err, transient=True)
