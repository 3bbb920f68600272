"""The output of a command: tables for people, one JSON document for programs.

The answer goes to stdout, everything else (progress, notes, errors) to stderr, so that a pipe gets only the answer.
With --json stdout holds exactly one document, also when the command fails; of a command that repeats, a line for each.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cdc_core.cli.performable import performable
from cdc_core.errors import LockstepError, parts_of, to_document
from cdc_core.model.readable import duration, shown, size

WIDE = 200
"""Width of a table that goes into a file or a pipe, neither of which has a width of its own."""


class _Notes(Console):
    """The console of stderr. Rich ends a process whose reader has left; a note that nobody reads must end nothing."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def _console(*, stderr: bool = False) -> Console:
    # Rich itself leaves bold and italics where NO_COLOR is set; a terminal without styles is what is asked for.
    plain = bool(os.environ.get("NO_COLOR"))
    kind = _Notes if stderr else Console
    console = kind(stderr=stderr, highlight=False, soft_wrap=False, color_system=None if plain else "auto")
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    return console


@dataclass(frozen=True, slots=True)
class CliOutput:
    """Where a command's answer goes. `as_json`: one JSON document instead of tables, and no progress."""

    as_json: bool
    out: Console = field(default_factory=_console)
    err: Console = field(default_factory=lambda: _console(stderr=True))

    def answer(self, document: Mapping[str, Any], *shown: RenderableType) -> None:
        """Print the document, or its form for people."""
        if self.as_json:
            sys.stdout.write(_json(document, indent=1))
        else:
            self.out.print(*shown, sep="\n", crop=False)

    def line(self, document: Mapping[str, Any], shown: str) -> None:
        """One of many answers: a line, of JSON or for people."""
        if self.as_json:
            sys.stdout.write(_json(document))
            sys.stdout.flush()
        else:
            self.out.print(Text(shown), crop=False)

    def leave(self, error: LockstepError | None) -> None:
        """Ends a command that has answered by an error that its document has; None ends nothing."""
        if error is not None:
            if not self.as_json:
                print_error(error, as_json=False)
            raise typer.Exit(error.exit_code)

    def note(self, text: str) -> None:
        """A line besides the answer."""
        self.err.print(Text(text, style="dim"))

    @property
    def animated(self) -> bool:
        """Whether to show a line of progress: only on terminals."""
        return self.err.is_terminal and not self.as_json


def _json(document: object, indent: int | None = None) -> str:
    document = _with_performable_remedies(document)
    plain = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    return json.dumps(document, indent=indent, ensure_ascii=plain, default=_plain) + "\n"


def _with_performable_remedies(document: object) -> object:
    if isinstance(document, Mapping):
        return {
            name: performable(value) if name == "remedy" and value else _with_performable_remedies(value)
            for name, value in document.items()
        }
    if isinstance(document, list | tuple):
        return [_with_performable_remedies(value) for value in document]
    return document


def _plain(value: object) -> object:
    """Values that JSON cannot express: times in ISO 8601, bytes in hexadecimal, numbers of any length as text."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


NARROWEST = 16
"""Minimum width of a table's column, unless its widest cell is narrower; otherwise each row becomes a list."""


_NUMBER = re.compile(r"~?-?[\d,]+(\.\d+)?( ([KMG]i)?B| s| min| h| d| %)?")
_NOTHING = {"–", "NULL", "?"}


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table if the terminal is wide enough; else each row as a list of `column  value`. Numbers, also with a unit,
    are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows or self._least_width() <= options.max_width:
            yield self._table()
            return
        if self.title:
            yield Text(self.title, style="italic")
        for number, row in enumerate(self.rows, 1):
            if len(self.rows) > 1:
                yield Text(f"row {number}", style="dim")
            grid = Table.grid(padding=(0, 2))
            grid.add_column(style="bold", no_wrap=True)
            grid.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=True):
                grid.add_row(Text(column), cell)
            yield grid

    def _least_width(self) -> int:
        cells = [
            max(cell_len(line) for text in (column, *(row[at].plain for row in self.rows)) for line in text.split("\n"))
            for at, column in enumerate(self.columns)
        ]
        # Two spaces and a line between two columns, a space at both ends.
        return sum(min(width, NARROWEST) for width in cells) + 3 * len(cells) + 1

    def _table(self) -> Table:
        made = Table(title=self.title or None, title_justify="left", header_style="bold", pad_edge=False)
        for at, column in enumerate(self.columns):
            cells = {row[at].plain for row in self.rows} - _NOTHING
            numbers = bool(cells) and all(map(_NUMBER.fullmatch, cells))
            made.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in self.rows:
            made.add_row(*row)
        return made


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    omit_empty: Collection[str] = (),
) -> FittedTable:
    """A table; columns of `omit_empty` are left out if all of their cells are zero or empty."""
    names, lines = list(columns), [list(row) for row in rows]
    kept = [
        at
        for at, name in enumerate(names)
        if name not in omit_empty or not lines or any(_holds(row[at]) for row in lines)
    ]
    cells = tuple(tuple(row[at] if isinstance(row[at], Text) else Text(shown(row[at])) for at in kept) for row in lines)
    return FittedTable(title, tuple(names[at] for at in kept), cells)  # type: ignore[arg-type]


def listing(title: str, documents: Iterable[Mapping[str, Any]], keys: str, *, omit_empty: str = "") -> FittedTable:
    """The table of documents: a column for each of the keys, under the key's name without its unit."""
    rows = [[_cell(key, document.get(key)) for key in keys.split()] for document in documents]
    return table(title, map(_heading, keys.split()), rows, omit_empty=[_heading(key) for key in omit_empty.split()])


def _heading(key: str) -> str:
    parts = key.removesuffix("_s" if "_per_" not in key else "").split("_")
    return " ".join("size" if part == "bytes" else part for part in parts if part != "bytes" or "size" not in parts)


def _cell(key: str, value: Any) -> object:
    if value is None or value == "":
        return value
    if "bytes" in key.split("_"):
        return size(value) if value else ""
    if key.endswith("_s") and "_per_" not in key:
        return duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and "offset" in value:
        from cdc_core.model.position import Position

        return str(Position.from_json(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _holds(cell: object) -> bool:
    return bool(cell.plain if isinstance(cell, Text) else cell)


def print_error(error: LockstepError, *, as_json: bool) -> None:
    """On stderr for people; with --json the document on stdout."""
    if as_json:
        CliOutput(as_json=True).answer(to_document(error))
        return
    console = _console(stderr=True)
    for part in parts_of(error):
        console.print(Text.assemble((f"{part.exit_class}: ", "bold red"), part.what), soft_wrap=True)
        if part.where:
            console.print(Text.assemble(("  at   ", "bold"), part.where), soft_wrap=True)
        console.print(Text.assemble(("  fix  ", "bold green"), performable(part.remedy)), soft_wrap=True)
        console.print(Text(f"  code {part.code} (docs/errors.md)", style="dim"), soft_wrap=True)
