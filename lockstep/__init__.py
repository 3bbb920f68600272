"""Lockstep's public Python API: reading the staged files, and runs. docs/analysts.md and docs/operations.md show it.

    import lockstep

    stage = lockstep.open("shop.yaml")
    stage["shop.orders"].now().to_pandas()
    lockstep.run("shop.yaml")

What is named here is stable; the modules of `cdc_core` are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, UsageError
from lockstep.runs import extract, run

if TYPE_CHECKING:
    from cdc_core.stage.public import Rows, Stage, StagedFile, Table, open

__all__ = [
    "DataAtRisk",
    "LockstepError",
    "Refused",
    "RetryLater",
    "Rows",
    "Stage",
    "StagedFile",
    "Table",
    "UsageError",
    "extract",
    "open",
    "run",
]


def __getattr__(name: str) -> Any:
    """What reads staged files, once it is asked for: Airflow parses files that import `lockstep.airflow` all the time,
    and need no DuckDB."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cdc_core.stage import public

    return getattr(public, name)
