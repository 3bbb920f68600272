"""Where a run ends because a column's type or the key of a table changed: rows of both types have no common one, and
rows under two keys are not the same rows, so that one run cannot merge them. It takes the batches from before, and the
next run the others; between the two the target's table may be altered. The extractor ends a batch there
(BatchWriter.redefines).

Pure functions. Keeps true: each source's chosen batches are the first of those that are open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from cdc_core.config import Target
from cdc_core.meta import PlanView
from cdc_core.model.run_plan import RunPlan
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
    return _before(view, ids, target, schemas, lambda table, known: conflict(known))


def before_new_key(
    view: PlanView, ids: frozenset[str], target: Target, schemas: Mapping[str, TableSchema]
) -> frozenset[str]:
    """The batches before the first one that has another key of a source table than they have; all if it is the first.
    Tables whose key the target's rules name have that one all along. Tables of two sources that have different keys are
    refused by the plan: nothing is to come that makes them equal."""

    def new_key(table: str, known: Sequence[TableSchema]) -> bool:
        rule = target.table(table)
        return rule is not None and not rule.key and len({one.key for one in known}) > 1

    return _before(view, ids, target, schemas, new_key, by_source=True)


def _before(
    view: PlanView,
    ids: frozenset[str],
    target: Target,
    schemas: Mapping[str, TableSchema],
    ends: Callable[[str, Sequence[TableSchema]], bool],
    *,
    by_source: bool = False,
) -> frozenset[str]:
    """ends: whether these definitions of one source table, which feeds this logical one, cannot be in one run.
    by_source: tables of one name in two sources are two."""
    seen: dict[tuple[str, str, str], dict[str, TableSchema]] = defaultdict(dict)
    batches = [batch for chain in view.chain.values() for batch in chain if batch.batch_id in ids]
    batches.sort(key=lambda batch: batch.window_start_us)  # stable: within a source, the order of the stream stays
    taken: set[str] = set()
    for batch in batches:
        for file in view.files[batch.batch_id]:
            if target.table(file.table) is None:
                continue
            schema = schemas[file.schema_id]
            known = seen[batch.source if by_source else "", file.table, schema.name]
            if schema.id not in known:
                known[schema.id] = schema
                if ends(file.table, list(known.values())):
                    return frozenset(taken) or ids
        taken.add(batch.batch_id)
    return ids
