"""What the merge of a table goes by, and the check of what it counted: the same for both ways to merge (merge.py)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T  # noqa: N812

from cdc_core.errors import DataAtRisk
from cdc_core.model.run import MergeCounts, MergeTable
from spark_jobs.columns import unified
from spark_jobs.job import Job
from spark_jobs.truncates import TruncateRule


def row_columns(job: Job, table: MergeTable) -> T.StructType:
    """The row columns of the merged table. Raises Refused (stage.schema_conflict)."""
    return unified(table.table, job.plan.current_schemas(table), job.schemas(table))


def moving_keys(job: Job, table: MergeTable) -> list[str]:
    """Shard keys of the targets that wait for this set, outside the table's key."""
    found: dict[str, None] = {}
    for one in job.plan.targets:
        if one.merge_set == job.merge_set.name:
            rule = job.pipeline.target(one.target).table(table.table)
            if rule is not None and rule.sharding is not None and rule.sharding.key not in table.key:
                found[rule.sharding.key] = None
    return list(found)


def source_names(table: MergeTable) -> set[str]:
    return {file.batch_id.partition("/")[0] for file in table.files}


def fillable(job: Job, table: MergeTable, columns: Sequence[str]) -> list[str]:
    """Columns that some change lacks and an older one may have."""
    if not table.absent_rows:
        return []
    unlogged = {column.name.lower() for schema in job.schemas(table) for column in schema.columns if not column.logged}
    return [name for name in columns if name not in table.key and name.lower() not in unlogged]


def truncate_rule(job: Job, table: MergeTable) -> TruncateRule:
    names = frozenset(schema.name for schema in job.schemas(table))
    alone = len(names) == 1 and all(job.pipeline.feeds_alone(name, table.table) for name in names)
    return TruncateRule(table.table, job.plan.run_id, table.on_truncate, names, alone, job.shared(table))


def checked(
    table: MergeTable,
    run_id: str,
    *,
    rows: int,
    undone: int,
    key_changes: int,
    superseded: int,
    lost: int,
    winners: int,
    removing: Sequence[str],
    files: Sequence[str],
) -> MergeCounts:
    """The counts of a merged table. undone: changes before a truncate, which `rows` leaves out. files: as there.

    Raises DataAtRisk (spark.absent_values, spark.rows_differ).
    """
    if lost:
        raise DataAtRisk(
            f"{lost} changes of {table.table} lack their key ({', '.join(table.key) or 'the whole row'}): "
            "the log did not carry all of their values.",
            where=run_id,
            code="spark.absent_values",
            remedy="make the table's primary key, which the log always carries, the target's key; or SET GLOBAL "
            "binlog_row_image = FULL on the source, copy the whole table to the target, and begin with the batches "
            "after these changes",
        )
    if rows + undone != table.rows:
        raise DataAtRisk(
            f"The files of {table.table} have {rows + undone} rows; their manifests say {table.rows}.",
            where=run_id,
            code="spark.rows_differ",
            remedy="compare the files with their manifests (`lockstep stage ls`) and restore what was changed",
        )
    truncates = tuple(sorted(removing)) if table.key else ()
    return MergeCounts(table.table, table.rows, key_changes, winners, superseded + undone, truncates, tuple(files))
