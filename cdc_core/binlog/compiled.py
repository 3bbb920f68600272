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

_Result = TypeVar("_Result")
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
_UNCOUNTED = {**_OPTIONS, "_nrt": False}


def kernel(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that Python calls."""
    return cast(Callable[..., _Result], nb.njit(**_UNCOUNTED)(function))


def inlined(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A part of a kernel: it is inlined, so that passing many arrays costs nothing."""
    return cast(Callable[..., _Result], nb.njit(**_UNCOUNTED, forceinline=True)(function))


def allocating(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that Python calls, and that allocates arrays."""
    return cast(Callable[..., _Result], nb.njit(**_OPTIONS)(function))
