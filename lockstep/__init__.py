"""Lockstep's public Python API: reading the staged files, and runs. docs/analysts.md and docs/operations.md show it.

    import lockstep

    stage = lockstep.open("shop.yaml")
    stage["shop.orders"].now().to_pandas()
    lockstep.run("shop.yaml")

What is named here is stable; the modules of `cdc_core` are not.
"""

from __future__ import annotations

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, UsageError
from cdc_core.stage.public import Rows, Stage, StagedFile, Table, open
from lockstep.runs import extract, run

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
