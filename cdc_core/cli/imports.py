"""Imports what a command needs in less time: a command that reads few changes spends most of its time on imports.

rich, and typer's help, are imported without modules that `lockstep` never uses but that take long to import.

rich.console imports `attr`, where that is installed, to print instances of its classes. typer.rich_utils imports
rich.markdown and rich.traceback, and with them all of markdown-it and Pygments, for a markup mode and for tracebacks
that the command line does not have. Later imports of these modules get the real ones.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

from typer.core import TyperCommand, TyperGroup
from typer.main import Typer

_OBJECTS = 50_000
"""More than are alive at once for one batch or answer; Python's own number is 700."""


class _Unused(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def _instead(modules: dict[str, ModuleType | None]) -> Iterator[None]:
    """What is imported meanwhile finds these modules, unless the real ones are loaded; None: it finds none."""
    added = {name: module for name, module in modules.items() if name not in sys.modules}
    loaded = cast(dict[str, ModuleType | None], sys.modules)
    loaded.update(added)
    try:
        yield
    finally:
        for name in added:
            del loaded[name]


def collect_seldom() -> None:
    """Has Python look for garbage after so many objects that imports, which leave none, hardly ever reach it: with the
    usual number, a fifth of a short command's time went there. What is imported by now is never looked at again."""
    gc.freeze()
    gc.set_threshold(_OBJECTS)


with _instead({"attr": None}):
    import rich.console  # noqa: F401


def _import_help() -> None:
    with _instead({name: _Unused(name) for name in ("rich.markdown", "rich.traceback")}):
        import typer.rich_utils  # noqa: F401


class _Command(TyperCommand):
    def format_help(self, *arguments: Any) -> None:
        _import_help()
        super().format_help(*arguments)


class _Group(TyperGroup):
    def format_help(self, *arguments: Any) -> None:
        _import_help()
        super().format_help(*arguments)


def lighten_help(app: Typer) -> None:
    """Makes the help of an application and of its commands import only what it needs."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
