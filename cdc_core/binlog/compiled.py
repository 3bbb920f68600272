"""How kernels are compiled: without the GIL, kept on disk, and without reference counts.

A kernel takes arrays, bundled in named tuples, allocates nothing, and returns numbers. Numba would count a reference
for every access to an array in a tuple, with an atomic instruction: a third of the time of a one-row transaction.
`_nrt=False` takes that away, as Numba's own mergesort does (numba/misc/mergesort.py, 0.68); a kernel that allocates
does not compile under it. `error_model`: division by zero yields what NumPy yields, so no division is checked.

What is on disk outlives an upgrade of Lockstep. Numba reads it again as long as the kernel's own file is unchanged,
although the code of other modules is compiled into it; and it cannot even read its index when a named tuple in it has
another name now. So the files of a kernel are named after every source that its module imports from its package.
On an executor of Spark this code is in a zip, at another path for each application: there the files are named after
the zip's content, in one folder of the user, where the next application finds them.

Before it loads a kernel from disk, Numba would import all that it can compile (random numbers, linear algebra, and
SciPy where that is installed): half a second of each process, and machine code needs none of it. So a kernel is loaded
by `_load_overload`, as FunctionCache.load_overload (numba/core/caching.py, 0.68) does after that import.
A kernel that has to be compiled still finds it: the compiler asks for it by itself (numba/core/compiler.py, 0.68).
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba as nb
from numba.core import config
from numba.core.caching import IndexDataCacheFile
from numba.misc.appdirs import AppDirs

from cdc_core.process.account import settled

os.environ.update(settled(os.environ))  # where numba keeps what it compiles
config.reload_config()  # type: ignore[no-untyped-call]

_Result = TypeVar("_Result")
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}
_IMPORT = re.compile(r"^ *(?:from|import) +([\w.]+)(?: +import +(?:\(([^)]*)\)|([^\n(]*)))?", re.MULTILINE)


def kernel(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that Python calls."""
    return _compiled(function, _OPTIONS)


def inlined(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A part of a kernel: it is inlined, so that passing many arrays costs nothing."""
    return _compiled(function, {**_OPTIONS, "forceinline": True})


def _compiled(function: Callable[..., _Result], options: dict[str, Any]) -> Callable[..., _Result]:
    file = Path(inspect.getfile(function))
    archive = _archive_of(file)
    if archive is not None and not _writable(_archive_cache()):
        options = {**options, "cache": False}
    made: Any = nb.njit(**options)(function)
    # Numba has no public way to name the files of its cache (numba/core/caching.py, 0.68). Where it compiles nothing
    # (NUMBA_DISABLE_JIT), it returns the function.
    kept = getattr(made, "_cache", None)
    if kept is not None and options["cache"]:
        if archive is None:
            stamp = _stamp(file, function.__module__)
        else:
            stamp = hashlib.sha256(_read(archive) + function.__module__.encode()).hexdigest()
            kept._cache_path = kept._impl.locator._cache_path = str(_archive_cache())
        base = f"{kept._impl.filename_base}-{stamp[:16]}"
        kept._cache_file = IndexDataCacheFile(kept.cache_path, base, stamp)  # type: ignore[no-untyped-call]
        kept.load_overload = kept._load_overload
    return cast(Callable[..., _Result], made)


def _archive_of(file: Path) -> Path | None:
    """The zip that holds a source file; None for a file of its own."""
    return None if file.exists() else next((parent for parent in file.parents if parent.is_file()), None)


def _archive_cache() -> Path:
    return Path(config.CACHE_DIR or AppDirs("numba", False).user_cache_dir) / "lockstep"  # type: ignore[no-untyped-call,attr-defined]


@cache
def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@cache
def _stamp(file: Path, module: str) -> str:
    """A hash of the module's source and of every source that it imports from its package, directly or not."""
    top = file.resolve().parents[module.count(".")]
    sources, pending = {file.resolve()}, [file.resolve()]
    while pending:
        new = set(_imported(pending.pop(), top)) - sources
        sources |= new
        pending += new
    hashed = hashlib.sha256()
    for source in sorted(sources):
        hashed.update(_read(source))
    return hashed.hexdigest()


def _imported(file: Path, top: Path) -> Iterator[Path]:
    for name, several, names in _IMPORT.findall(_read(file).decode()):
        for imported in (name, *(f"{name}.{word}" for word in re.findall(r"\w+", several or names))):
            path = top.joinpath(*imported.split("."))
            yield from (
                candidate for candidate in (path.with_suffix(".py"), path / "__init__.py") if candidate.is_file()
            )


@cache
def _read(file: Path) -> bytes:
    return file.read_bytes()
