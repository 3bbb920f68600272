"""The rules of a table's merge, and the check of its counts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdc_core.config import MysqlTable
from cdc_core.errors import DataAtRisk, FilesLost
from cdc_core.history.history import Counts
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Truncate, TruncateRule
from cdc_core.model.batch import at_place
from cdc_core.model.position import seq_of_name
from cdc_core.model.run_plan import FileToRead, MergeCounts, MergeTable, files_to_read
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.staged_events import FileOfEvents
from cdc_core.stage.unify import lake_row, merged_row
from spark_jobs.job import Job


def row_columns(job: Job, table: MergeTable) -> pa.Schema:
    """The row columns of the merged table. Raises Refused (stage.schema_conflict)."""
    return merged_row(table.table, job.schemas(table), job.plan.current_schemas(table))


def change_columns(job: Job, table: MergeTable) -> pa.Schema:
    """A lake's row columns of all definitions of the table, also those that were dropped since. Raises as
    `row_columns`."""
    return lake_row(table.table, job.schemas(table), None)


def table_rule(job: Job, table: MergeTable) -> TableRule:
    """Raises Refused (stage.schema_conflict)."""
    columns = row_columns(job, table)
    fill = _fillable(job, table, columns.names)
    return TableRule(columns, table.key, moving_keys(job, table), fill, job.shared(table))


def moving_keys(job: Job, table: MergeTable) -> list[str]:
    """Shard keys of the targets that wait for this set, outside the table's key."""
    found: dict[str, None] = {}
    for target in job.plan.targets:
        if table.key and target.merge_set == job.merge_set.name:
            rule = job.pipeline.target(target.target).table(table.table)
            if isinstance(rule, MysqlTable) and rule.sharding is not None and rule.sharding.key not in table.key:
                found[rule.sharding.key] = None
    return list(found)


def _fillable(job: Job, table: MergeTable, columns: Sequence[str]) -> list[str]:
    """Columns that some change lacks and an older one may have."""
    if not table.absent_rows or not table.key:
        return []
    unlogged = {column.name.lower() for schema in job.schemas(table) for column in schema.columns if not column.logged}
    return [name for name in columns if name not in table.key and name.lower() not in unlogged]


def truncate_rule(job: Job, table: MergeTable) -> TruncateRule:
    names = frozenset(schema.name for schema in job.schemas(table))
    alone = len(names) == 1 and all(job.pipeline.feeds_alone(name, table.table) for name in names)
    return TruncateRule(table.table, job.plan.run_id, table.on_truncate, names, alone, job.shared(table))


def files_of_events(job: Job, table: MergeTable) -> list[FileOfEvents]:
    return [_file(job, file) for file in files_to_read(table.files)]


def _file(job: Job, file: FileToRead) -> FileOfEvents:
    copied = parse_copied(file.path) is not None
    begins = () if copied else tuple(sorted({begin_of(batch) for batch in file.batches}))
    return FileOfEvents(file, job.plan.schemas[file.schema_id], file.key_changes, copied, file.seqs, begins)


def begin_of(batch_id: str) -> int:
    """The order key of the place where a batch begins."""
    return seq_of_name(at_place(batch_id).rpartition("/")[2])


def checked(
    table: MergeTable, run_id: str, counts: Counts, winners: int, truncates: Sequence[str], files: Sequence[str]
) -> MergeCounts:
    """The counts of a merged table. truncates: versions of those that count. files: as in MergeCounts.

    Raises DataAtRisk (target.absent_values, stage.damaged).
    """
    if counts.lost:
        raise DataAtRisk(
            f"{counts.lost} changes of {table.table} lack their key ({', '.join(table.key) or 'the whole row'}): "
            "the log did not carry all of their values.",
            where=run_id,
            code="target.absent_values",
            remedy="make the table's primary key, which the log always carries, the target's key; or SET GLOBAL "
            "binlog_row_image = FULL on the source, copy the whole table to the target, and begin with the batches "
            "after these changes",
        )
    if counts.changes != table.rows:
        raise FilesLost(
            f"The files of {table.table} have {counts.changes} rows; their manifests say {table.rows}.",
            where=run_id,
            remedy="compare the files with their manifests (`lockstep stage ls`) and restore what was changed",
        )
    removing = tuple(sorted(truncates)) if table.key else ()
    return MergeCounts(
        table.table, table.rows, counts.key_changes, winners, counts.superseded, removing, tuple(sorted(files))
    )


def versions(rule: TruncateRule, truncates: Sequence[Truncate]) -> tuple[str, ...]:
    """In hex."""
    return tuple(rule.version(truncate) for truncate in truncates)
