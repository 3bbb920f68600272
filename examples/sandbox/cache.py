"""The folder that outlives clones: each download or build happens once, under a lock, and appears whole."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class SandboxError(Exception):
    """A server or a download is not available; the text says why and what to do."""


def cache_dir() -> Path:
    """`$LOCKSTEP_CACHE`, by default `~/.cache/lockstep`; made when absent."""
    directory = Path(os.environ.get("LOCKSTEP_CACHE") or Path.home() / ".cache" / "lockstep").expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the cache's lock `name`; another process waits, and a process that dies lets go of it."""
    path = cache_dir() / "locks" / f"{name.replace('/', '-')}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cached folder `name`; when absent, `build` fills an empty folder that then takes the name in one step."""
    final = cache_dir() / name
    if final.is_dir():
        return final
    with locked(name):
        if final.is_dir():
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
        try:
            build(partial)
            partial.chmod(0o755)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return final
