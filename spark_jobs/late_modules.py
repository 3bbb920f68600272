"""Modules that a library loads and hardly ever uses: they are loaded when something of them is first used.

Great Expectations loads altair for its pages and scipy.stats for statistical expectations: a third of the CPU time that
its import takes. Another tenth is the collector of cyclic garbage, which finds none among new modules.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_loading = threading.RLock()


class _Late(ModuleType):
    """Stands for a module until something of it is used, and passes on what is asked of it."""

    def __getattr__(self, name: str) -> Any:
        with _loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def late(*names: str) -> Iterator[None]:
    """Around imports: these modules are loaded only once they are used, then or later."""
    for name in names:
        sys.modules.setdefault(name, _Late(name))
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
