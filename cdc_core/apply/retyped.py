"""Where a run ends because a column's type changed: rows of both types have no common one, so that one run cannot merge
them. It takes the batches from before, and the next run the others; between the two the target's column may be altered.

A pure function of a plan's view. Keeps true: each source's chosen batches are the first of those that are open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cdc_core.config import Target
from cdc_core.errors import Refused
from cdc_core.meta import PlanView
from cdc_core.model.run import RunPlan
from cdc_core.model.schema import TableSchema
from cdc_core.stage.unify import unified_columns


def retyped_table(plan: RunPlan) -> str:
    """A table of the plan whose rows cannot be merged in one run; "" if there is none."""
    for one in plan.merge_sets:
        for table in one.tables:
            schemas = [plan.schemas[schema_id] for schema_id in dict.fromkeys(file.schema_id for file in table.files)]
            if _differ(table.table, schemas, plan.current_schemas(table)):
                return table.table
    return ""


def before_retyping(
    view: PlanView, ids: frozenset[str], target: Target, schemas: Mapping[str, TableSchema]
) -> frozenset[str]:
    """The batches before the first one that has a type without a common one with theirs; all if it is the first."""
    seen: dict[str, dict[str, TableSchema]] = defaultdict(dict)
    batches = [batch for chain in view.chain.values() for batch in chain if batch.batch_id in ids]
    batches.sort(key=lambda batch: batch.window_start_us)  # stable: within a source, the order of the stream stays
    taken: set[str] = set()
    for batch in batches:
        for file in view.files[batch.batch_id]:
            known = seen[file.table]
            if target.table(file.table) is not None and file.schema_id not in known:
                known[file.schema_id] = schemas[file.schema_id]
                if _differ(file.table, list(known.values()), None):
                    return frozenset(taken) or ids
        taken.add(batch.batch_id)
    return ids


def _differ(table: str, schemas: list[TableSchema], current: tuple[TableSchema, ...] | None) -> bool:
    if len(schemas) < 2:
        return False
    try:
        unified_columns(table, schemas, current)
    except Refused:
        return True
    return False
