"""The progress of an operation: one line on a terminal, from any thread, and notes elsewhere."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from cdc_core.cli.output import CliOutput
from cdc_core.cli.terminal_progress import TerminalProgress


def shown(*, terminal: bool, line: bool = True) -> str:
    """What an operation with three tables leaves on stderr."""
    stderr = io.StringIO()
    output = CliOutput(as_json=False, err=Console(file=stderr, force_terminal=terminal, width=100))
    with TerminalProgress(output, line=line) as progress:
        progress.step("merge")
        progress.note("a note")
        with progress.comparing() as show, ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda table: show(table, "source", 7), ("[red]a[/]", "b", "c")))
    assert progress._status is None
    return stderr.getvalue()


def test_a_terminal_has_a_line_that_is_cleared_in_the_end() -> None:
    text = shown(terminal=True)
    assert "merge" in text
    assert "a note" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_line_there_are_notes_alone(terminal: bool) -> None:
    text = shown(terminal=terminal, line=not terminal)
    assert "a note" in text
    assert "merge" not in text
