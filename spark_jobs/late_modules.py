"""Modules that a library loads and hardly ever uses: they are loaded when something of them is first used.

Great Expectations loads altair for its pages and scipy.stats for statistical expectations: a third of the CPU time that
its import takes. Another tenth is the collector of cyclic garbage, which finds none among new modules.
Jobs use them from several threads, in which importlib.util.LazyLoader of Python 3.11.7 shows modules half loaded.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

OF_GREAT_EXPECTATIONS = {name: partial(import_module, name) for name in ("altair", "scipy.stats")}
_loading = threading.RLock()


class _Late(ModuleType):
    """Is in the place of a module until something of it is used, and has what that module has."""

    def __init__(self, name: str, load: Callable[[], ModuleType]) -> None:
        super().__init__(name)
        self.__load = load

    def __getattr__(self, name: str) -> Any:
        with _loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(self.__load(), name)


@contextmanager
def late(modules: Mapping[str, Callable[[], ModuleType]]) -> Iterator[None]:
    """Around imports: these modules are loaded only once they are used, then or later. modules: what loads each."""
    for name, load in modules.items():
        sys.modules.setdefault(name, _Late(name, load))
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
