"""What Lockstep remembers between tasks: leases, positions, batches, consume records, ledgers.

The stage's manifests are the truth about batches (Meta.rebuild restores them from there); consume records and ledgers
live only here. Everything goes through `Meta`, whose methods are one transaction each.
"""

from cdc_core.meta.copies import CopyPause, PlannedChunk, ReadChunk, TableCopy, copier_of
from cdc_core.meta.cutovers import Cutover
from cdc_core.meta.ddl import Rollout, ShardProgress
from cdc_core.meta.meta import Meta
from cdc_core.meta.overview import Account, Overview, TableFreshness, WindowSums
from cdc_core.meta.rows import (
    BatchRow,
    ChunkRetries,
    Claim,
    ClosedWrite,
    CopyState,
    CopyStatus,
    Failure,
    FileRow,
    LastWrite,
    LastWrites,
    Lease,
    LedgerRow,
    PlannedRun,
    RecordRow,
    Renewal,
    Renewals,
    RingDepth,
    RunRow,
    SourceCoverage,
    SourceStatus,
    StateCount,
    Status,
    TargetStatus,
    Verification,
)
from cdc_core.meta.states import RecordState, RunState
from cdc_core.meta.views import PlanView

__all__ = [
    "Account",
    "BatchRow",
    "ChunkRetries",
    "Claim",
    "ClosedWrite",
    "CopyPause",
    "CopyState",
    "CopyStatus",
    "Cutover",
    "Failure",
    "FileRow",
    "LastWrite",
    "LastWrites",
    "Lease",
    "LedgerRow",
    "Meta",
    "Overview",
    "PlanView",
    "PlannedChunk",
    "PlannedRun",
    "ReadChunk",
    "RecordRow",
    "RecordState",
    "Renewal",
    "Renewals",
    "RingDepth",
    "Rollout",
    "RunRow",
    "RunState",
    "ShardProgress",
    "SourceCoverage",
    "SourceStatus",
    "StateCount",
    "Status",
    "TableCopy",
    "TableFreshness",
    "TargetStatus",
    "Verification",
    "WindowSums",
    "copier_of",
]
