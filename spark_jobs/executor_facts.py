"""What an executor of Spark has: asked there before anything else of Lockstep is imported, which might fail.

It imports the standard library only.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """python: its minor version. code: where it finds cdc_core; "" for nowhere. missing: modules that it lacks."""

    host: str
    python: str
    code: str
    missing: tuple[str, ...]


def facts_of(modules: Sequence[str]) -> Iterator[ExecutorFacts]:
    """Of this process. modules: top-level ones, to look for."""
    own = importlib.util.find_spec("cdc_core")
    yield ExecutorFacts(
        socket.gethostname(),
        python_version(),
        (own.origin or "") if own is not None else "",
        tuple(name for name in modules if importlib.util.find_spec(name) is None),
    )


def python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
