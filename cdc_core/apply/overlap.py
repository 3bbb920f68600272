"""Changes that may be staged twice: those after a failover by time, or to a server that has logged transactions in
another order (source.failover), up to a known position.

Where rows have a key, the guard finds the second copy by its version, and it changes nothing. Rows without a key would
be counted twice: no run takes them.
"""

from __future__ import annotations

from cdc_core.errors import Refused
from cdc_core.meta import Meta, PlanView
from cdc_core.model.run import RunPlan
from cdc_core.stage.manifest import parse
from cdc_core.stage.objects import ObjectStore, find


def require_counted_once(meta: Meta, store: ObjectStore, view: PlanView, plan: RunPlan) -> None:
    """Raises Refused (plan.overlap)."""
    keyless = {
        file.batch_id: table.table
        for one in plan.merge_sets
        for table in one.tables
        if not table.key
        for file in table.files
    }
    for source, chain in view.chain.items():
        moved = [batch for batch in chain if batch.batch_id in keyless and batch.begin.timeline]
        if not moved:
            continue
        for bridge in meta.batches(source):
            if bridge.begin.timeline == bridge.end.timeline:
                continue
            data = find(store, bridge.manifest)
            if data is None:  # purged: the plan has seen that every batch from the horizon on has its manifest
                continue
            leads = parse(data, bridge.manifest, store.uri)
            for batch in moved:
                if leads.may_repeat(batch.begin):
                    raise Refused(
                        f"The batch {batch.batch_id} may repeat changes of {keyless[batch.batch_id]!r} that were "
                        f"staged before {bridge.end}, where reading continued on another server; the table has no key "
                        "by which to find such repeats.",
                        where=plan.run_id,
                        code="plan.overlap",
                        remedy="leave the table out of the target's tables until these batches are committed; copy the "
                        "source's rows to the target's table while nobody writes to it; then add the table again",
                    )
