"""Reduces the memory of the extractor's process.

pyarrow imports pandas at the first `pa.array`, where it is installed, to see whether it was given one of its objects:
30 MiB and the time to load 300 modules, for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _NoPandas:
    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None


def limit_memory() -> None:
    """For the extractor's process, before it reads: no pandas, and one allocator for the buffers of NumPy and Arrow:
    each of two allocators would keep its own peak."""
    without_pandas()
    pa.set_memory_pool(pa.system_memory_pool())


def without_pandas() -> None:
    """Makes pyarrow look for pandas now, and not find it; it looks only once. Later users of pandas, even pyarrow's
    `to_pandas`, still get it."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)
