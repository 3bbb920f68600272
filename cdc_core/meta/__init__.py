"""What Lockstep remembers between tasks: leases, positions, batches, consume records, ledgers.

The stage's manifests are the truth about batches (Batches.rebuild restores them from there); consume records and
ledgers live only here. `Meta` has a repository for each of these, whose methods are one transaction each.
"""

from cdc_core.meta.meta_rows import (
    BatchRow,
    ChunkRetries,
    Claim,
    ClosedWrite,
    CopyState,
    CopyStatus,
    Cutover,
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
from cdc_core.meta.overviews import Account, Overview, TableFreshness, WindowSums
from cdc_core.meta.pipeline_meta import Meta
from cdc_core.meta.plan_views import PlanView
from cdc_core.meta.rollouts import Rollout, ShardProgress
from cdc_core.meta.run_states import RecordState, RunState
from cdc_core.meta.table_copies import CopyPause, PlannedChunk, ReadChunk, TableCopy, copier_of

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
