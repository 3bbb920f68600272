"""Where a run ends because a column's type or the key of a table changed: rows of both types have no common one, and
rows under two keys are not the same rows, so that one run cannot merge them. It takes the batches from before, and the
next run the others; between the two the target's table may be altered. The extractor ends a batch there
(BatchWriter.redefines).

Pure functions. Keeps true: each source's chosen batches are the first of those that are open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cdc_core.config import IcebergTarget, Target
from cdc_core.meta import PlanView
from cdc_core.model.schema import TableSchema
from cdc_core.stage.unify import conflict


def before_redefinition(
    view: PlanView, ids: frozenset[str], target: Target, schemas: Mapping[str, TableSchema]
) -> frozenset[str]:
    """The batches before the first one that defines a table of the target so that its rows cannot be merged with
    theirs; all if it is the first."""
    batches = [batch for chain in view.chain.values() for batch in chain if batch.batch_id in ids]
    batches.sort(key=lambda batch: batch.window_start_us)  # stable: within a source, the order of the stream stays
    used: dict[tuple[str, str], list[TableSchema]] = defaultdict(list)
    for batch in batches:
        for file in view.files[batch.batch_id]:
            schema = schemas[file.schema_id]
            used[file.table, schema.name].append(schema)
    apart = {
        shard
        for shard, defined in used.items()
        if conflict(list({each.id: each for each in defined}.values()), _read(target, shard[0], defined))
    }
    by_name: dict[tuple[str, str], dict[str, TableSchema]] = defaultdict(dict)
    by_source: dict[tuple[str, str, str], dict[str, TableSchema]] = defaultdict(dict)
    taken: set[str] = set()
    for batch in batches:
        for file in view.files[batch.batch_id]:
            rule, schema = target.table(file.table), schemas[file.schema_id]
            if rule is None:
                continue
            named = by_name[file.table, schema.name]
            # Tables of two sources that have different keys are refused by the plan: nothing is to come that makes them
            # equal. Those whose key the target's rules name have that one all along.
            own = by_source[batch.source, file.table, schema.name]
            known = schema.id in named and schema.id in own
            named[schema.id] = own[schema.id] = schema
            retyped = (file.table, schema.name) in apart and conflict(list(named.values()))
            if not known and (retyped or (not rule.key and _two_keys(own.values()))):
                return frozenset(taken) or ids
        taken.add(batch.batch_id)
    return ids


def _read(target: Target, table: str, defined: Sequence[TableSchema]) -> Sequence[TableSchema] | None:
    """The definitions whose columns a run reads. Those that the last one does not have any more are not merged,
    whatever types they had, but a changes table has them all (None)."""
    return None if isinstance(target, IcebergTarget) and target.keeps_changes(table) else defined[-1:]


def _two_keys(schemas: Iterable[TableSchema]) -> bool:
    return len({schema.key for schema in schemas}) > 1
