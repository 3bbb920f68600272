"""What Lockstep remembers between tasks: leases, positions, batches, consume records, ledgers.

The stage's manifests are the truth about batches (Batches.rebuild restores them from there); consume records and
ledgers live only here. `Meta` has a repository for each of these, whose methods are one transaction each. The values
that many packages use are here; the others are imported from their modules.
"""

from cdc_core.meta.meta_rows import BatchRow, Cutover, Lease, LedgerRow, RunRow, SourceCoverage, Status
from cdc_core.meta.pipeline_meta import Meta
from cdc_core.meta.plan_views import PlanView
from cdc_core.meta.run_states import RunState
from cdc_core.meta.table_copies import ReadChunk, TableCopy

__all__ = [
    "BatchRow",
    "Cutover",
    "Lease",
    "LedgerRow",
    "Meta",
    "PlanView",
    "ReadChunk",
    "RunRow",
    "RunState",
    "SourceCoverage",
    "Status",
    "TableCopy",
]
