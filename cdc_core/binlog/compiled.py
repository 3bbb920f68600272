"""How kernels are compiled: without the GIL, kept on disk, and without reference counts.

A kernel takes arrays, bundled in named tuples, allocates nothing, and returns numbers. Numba would count a reference
for every access to an array in a tuple, with an atomic instruction: a third of the time of a one-row transaction.
`_nrt=False` takes that away, as Numba's own mergesort does (numba/misc/mergesort.py, 0.68); a kernel that allocates
does not compile under it. `error_model`: division by zero yields what NumPy yields, so no division is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba as nb

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _Function) -> _Function:
    """A function that Python calls."""
    return cast(_Function, nb.njit(**_OPTIONS)(function))


def inlined(function: _Function) -> _Function:
    """A part of one: it costs no call, however many arrays it is handed."""
    return cast(_Function, nb.njit(**_OPTIONS, forceinline=True)(function))
