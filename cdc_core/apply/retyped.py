"""Where a run ends because a column's type changed: rows of both types have no common one, so that one run cannot merge
them. It takes the batches from before, and the next run the others; between the two the target's column may be altered.
The extractor ends a batch there (BatchWriter.retypes).

Pure functions. Keeps true: each source's chosen batches are the first of those that are open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cdc_core.config import Target
from cdc_core.meta import PlanView
from cdc_core.model.run import RunPlan
from cdc_core.model.schema import TableSchema
from cdc_core.stage.unify import conflict


def retyped_table(plan: RunPlan) -> str:
    """A source table whose rows in the plan cannot be merged in one run; "" if there is none."""
    for one in plan.merge_sets:
        for table in one.tables:
            current = plan.current_schemas(table)
            used = [plan.schemas[schema_id] for schema_id in dict.fromkeys(file.schema_id for file in table.files)]
            for name in dict.fromkeys(schema.name for schema in used):
                if conflict([one for one in used if one.name == name], [one for one in current if one.name == name]):
                    return name
    return ""


def before_retyping(
    view: PlanView, ids: frozenset[str], target: Target, schemas: Mapping[str, TableSchema]
) -> frozenset[str]:
    """The batches before the first one that has a type without a common one with theirs; all if it is the first."""
    seen: dict[tuple[str, str], dict[str, TableSchema]] = defaultdict(dict)
    batches = [batch for chain in view.chain.values() for batch in chain if batch.batch_id in ids]
    batches.sort(key=lambda batch: batch.window_start_us)  # stable: within a source, the order of the stream stays
    taken: set[str] = set()
    for batch in batches:
        for file in view.files[batch.batch_id]:
            if target.table(file.table) is None:
                continue
            schema = schemas[file.schema_id]
            known = seen[file.table, schema.name]
            if schema.id not in known:
                known[schema.id] = schema
                if conflict(list(known.values())):
                    return frozenset(taken) or ids
        taken.add(batch.batch_id)
    return ids
