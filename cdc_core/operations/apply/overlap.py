"""Changes that may be staged twice: those after a failover by time, or to a server that has logged transactions in
another order (source.failover), up to a known position.

Where rows have a key, the guard finds the second copy by its version, and it changes nothing. Rows without a key would
be counted twice: no run takes them, unless it also has a copy of their table that takes the place of these changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cdc_core.errors import Refused
from cdc_core.meta import BatchRow, Meta, PlanView
from cdc_core.model.coverage import How
from cdc_core.model.run_plan import PlannedFile, RunPlan
from cdc_core.stage.manifest import parse
from cdc_core.stage.objects import ObjectStore, find


def require_counted_once(meta: Meta, store: ObjectStore, view: PlanView, plan: RunPlan) -> None:
    """Raises Refused (stage.partial)."""
    keyless: dict[str, list[tuple[str, PlannedFile]]] = defaultdict(list)
    for merge_set in plan.merge_sets:
        for table in merge_set.tables:
            for file in () if table.key else table.files:
                keyless[file.batch_id].append((table.table, file))
    for source, chain in view.chain.items():
        batches = [batch for batch in chain if batch.batch_id in keyless]
        began = _copies_began(store, [batch for batch in batches if batch.copied])
        moved = [
            (batch, logical)
            for batch in batches
            for logical, file in keyless[batch.batch_id]
            if batch.begin.timeline
            and not batch.copied
            and file.max_seq >= began.get(plan.schemas[file.schema_id].name, 0)
        ]
        if not moved:
            continue
        for bridge in meta.batches.find(source):
            if bridge.begin.timeline == bridge.end.timeline:
                continue
            data = find(store, bridge.manifest)
            if data is None:  # purged: the plan has seen that every batch from the horizon on has its manifest
                continue
            leads = parse(data, bridge.manifest, store.uri)
            for batch, logical in moved:
                if leads.may_repeat(batch.begin):
                    raise Refused(
                        f"The batch {batch.batch_id} may repeat changes of {logical!r} from before {bridge.end}, "
                        "where reading continued on another server. Without a key, such repeats cannot be found.",
                        where=plan.run_id,
                        code="stage.partial",
                        remedy="copy its source tables again (`lockstep snapshot PIPELINE TABLE`), and let a run "
                        "take these batches together with the copy",
                    )


def _copies_began(store: ObjectStore, copied: Sequence[BatchRow]) -> dict[str, int]:
    """For each source table, the order key of the place where the last of these copies began. A copy without a key
    takes the place of all that is older."""
    found: dict[str, int] = {}
    for batch in copied:
        manifest = parse(store.get(batch.manifest), batch.manifest, store.uri)
        for name, covered in manifest.coverage.items():
            if covered.how is How.COPIED:
                found[name] = max(covered.needs_seq, found.get(name, 0))
    return found
