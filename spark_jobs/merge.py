"""Merge: of all staged changes of a run, the last one of each key.

Reads exactly the files of the plan, all tables of a set in one application, each file once. A key change becomes the
delete of the old key and the upsert of the new one. Within a source the last change is the one with the greatest
(_cdc_seq, _cdc_row); between sources the greatest (_cdc_ts, _cdc_source), as the guard compares.
Aggregation is partial first, then shuffled by key: no global sort, nothing collected.

Columns of a merged row: the row's own, `_cdc_op` (u upsert, d delete), `_cdc_ts` `_cdc_source` `_cdc_seq` `_cdc_row`,
`_cdc_literal`, `_cdc_born` (some change of the run brought the key to life) and, where a target's shard key is not
part of the key, `_cdc_moved`: a struct with, by shard key, the values that the row had before.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.apply.retention import require_unpurged
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.run import MergeCounts, MergeTable, counts_path, counts_to_bytes
from cdc_core.model.staged import BEFORE, DELETE, INSERT, LITERAL, OP, ROW, SEQ, SNAPSHOT, SOURCE, TRUNCATE, TS, UPDATE
from spark_jobs.columns import c, staged_struct, unified
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.session import size_shuffles

BORN, MOVED = "_cdc_born", "_cdc_moved"
_SIDE, _ARRIVED, _WINNER = "_cdc_side", "_cdc_arrived", "_cdc_winner"
_COUNTS = ("_cdc_changes", "_cdc_key_changes", "_cdc_truncates")
_KEPT = (OP, TS, SOURCE, SEQ, ROW, LITERAL)
_BEFORE_MARK = BEFORE + "."


def winners(
    changes: DataFrame, columns: T.StructType, key: Sequence[str], *, moving: Sequence[str] = (), sources: int = 1
) -> DataFrame:
    """The last change of each key, with `_cdc_changes`, `_cdc_key_changes` and `_cdc_truncates` of the key.

    changes: staged columns, the row's already unified to `columns`. moving: shard keys outside the key.
    """
    sides = _split_key_changes(changes, columns, key)
    groups = [exact(columns[name].dataType, name).alias(f"_cdc_key{at}") for at, name in enumerate(key)]
    payload = F.struct(*[c(field.name) for field in columns], *[c(name) for name in _KEPT])
    order = F.struct(c(SEQ), c(ROW))
    totals = [
        F.count(F.lit(1)).alias(_COUNTS[0]),
        F.sum(c(_SIDE)).cast("bigint").alias(_COUNTS[1]),
        F.sum((c(OP) == TRUNCATE).cast("bigint")).alias(_COUNTS[2]),
        F.max(c(_ARRIVED)).alias(BORN),
        *[F.collect_set(c(_was(at))).alias(_was(at)) for at in range(len(moving))],
    ]
    for at, name in enumerate(moving):
        moved = (c(OP) == UPDATE) & (c(_SIDE) == 0) & ~c(BEFORE, name).eqNullSafe(c(name))
        sides = sides.withColumn(_was(at), F.when(moved, c(BEFORE, name)))
    by_source = [c(SOURCE)] if sources > 1 else []
    last = sides.groupBy(*groups, *by_source).agg(F.max_by(payload, order).alias(_WINNER), *totals)
    if sources > 1:
        between = F.struct(c(_WINNER, TS), c(_WINNER, SOURCE))
        last = last.groupBy(*[c(f"_cdc_key{at}") for at in range(len(key))]).agg(
            F.max_by(c(_WINNER), between).alias(_WINNER),
            *[F.sum(c(name)).alias(name) for name in _COUNTS],
            F.max(c(BORN)).alias(BORN),
            *[F.array_distinct(F.flatten(F.collect_list(c(_was(at))))).alias(_was(at)) for at in range(len(moving))],
        )
    op = F.when(c(_WINNER, OP) == DELETE, F.lit(DELETE)).otherwise(F.lit(UPDATE)).alias(OP)
    places = [F.struct(*[c(_was(at)).alias(name) for at, name in enumerate(moving)]).alias(MOVED)] if moving else []
    return last.select(
        *[c(_WINNER, field.name).alias(field.name) for field in columns],
        op,
        *[c(_WINNER, name).alias(name) for name in _KEPT if name != OP],
        c(BORN),
        *places,
        *[c(name) for name in _COUNTS],
    )


def _was(at: int) -> str:
    return f"_cdc_was{at}"


def exact(kind: T.DataType, name: str, *, before: bool = False) -> Column:
    """A key column as it is compared. Where the type has values that it cannot hold, by its text."""
    value = c(BEFORE, name) if before else c(name)
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return F.coalesce(c(LITERAL)[(_BEFORE_MARK if before else "") + name], value.cast("string"))
    return value


def _split_key_changes(changes: DataFrame, columns: T.StructType, key: Sequence[str]) -> DataFrame:
    """Each change once, and each key change a second time (`_cdc_side` 1) as the delete of its old key."""
    same = [
        exact(columns[name].dataType, name).eqNullSafe(exact(columns[name].dataType, name, before=True)) for name in key
    ]
    unchanged = same[0]
    for one in same[1:]:
        unchanged = unchanged & one
    key_change = (c(OP) == UPDATE) & c(BEFORE).isNotNull() & ~unchanged
    sides = changes.withColumn("_cdc_key_change", key_change).withColumn(
        _SIDE, F.explode(F.when(c("_cdc_key_change"), F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0))))
    )
    old = c(_SIDE) == 1
    literal = F.when(
        old,
        F.transform_keys(
            F.map_filter(c(LITERAL), lambda name, _: F.startswith(name, F.lit(_BEFORE_MARK))),
            lambda name, _: F.substring(name, len(_BEFORE_MARK) + 1, 2**31 - 1),
        ),
    ).otherwise(F.map_filter(c(LITERAL), lambda name, _: ~F.startswith(name, F.lit(_BEFORE_MARK))))
    return sides.select(
        *[F.when(old, c(BEFORE, field.name)).otherwise(c(field.name)).alias(field.name) for field in columns],
        c(BEFORE),
        F.when(old, F.lit(DELETE)).otherwise(c(OP)).alias(OP),
        *[c(name) for name in (TS, SOURCE, SEQ, ROW)],
        F.when(F.size(literal) > 0, literal).alias(LITERAL),
        c(_SIDE),
        (c(OP).isin(INSERT, SNAPSHOT) | (c("_cdc_key_change") & ~old)).alias(_ARRIVED),
    )


def read_changes(job: Job, table: MergeTable, columns: T.StructType) -> DataFrame:
    """The staged rows of the plan's files, with the row's columns unified."""
    found: DataFrame | None = None
    for schema_id in dict.fromkeys(file.schema_id for file in table.files):
        schema = job.plan.schemas[schema_id]
        paths = [job.store.spark_uri(file.path) for file in table.files if file.schema_id == schema_id]
        part = job.spark.read.schema(staged_struct(schema)).parquet(*paths)
        names = {column.name.lower(): column.name for column in schema.columns}
        now = [_fitted(field, names) for field in columns]
        was = F.struct(*[_fitted(field, names, BEFORE) for field in columns])
        part = part.select(
            *now,
            F.when(c(BEFORE).isNotNull(), was).alias(BEFORE),
            *[c(name) for name in (OP, TS, SOURCE, SEQ, ROW, LITERAL)],
        )
        found = part if found is None else found.unionByName(part)
    assert found is not None  # a table of a plan has files
    return found


def _fitted(field: T.StructField, names: dict[str, str], *inside: str) -> Column:
    own = names.get(field.name.lower())
    value = F.lit(None) if own is None else c(*inside, own)
    return value.cast(field.dataType).alias(field.name)


def merge_table(job: Job, table: MergeTable) -> MergeCounts:
    """Writes the winners of one table; its counts. Raises DataAtRisk (spark.rows_differ), Refused (spark.truncate)."""
    schemas = [job.plan.schemas[schema_id] for schema_id in dict.fromkeys(file.schema_id for file in table.files)]
    columns = unified(table.table, job.current_schemas(table), schemas)
    sources = {file.batch_id.partition("/")[0] for file in table.files}
    changes = read_changes(job, table, columns)
    last = winners(changes, columns, table.key, moving=moving_keys(job, table), sources=len(sources))
    seen = Observation()
    changes_of_key, key_changes, truncates = (c(name) for name in _COUNTS)
    observed = last.observe(
        seen,
        F.sum(changes_of_key - key_changes).alias("rows"),
        F.sum(key_changes).alias("key_changes"),
        F.sum(changes_of_key - 1).alias("superseded"),
        F.sum(truncates).alias("truncates"),
    )
    folder = job.merged(table.table)
    observed.drop(*_COUNTS).write.mode("overwrite").parquet(job.store.spark_uri(folder))
    got = {name: int(value or 0) for name, value in seen.get.items()}
    if got["truncates"]:
        raise Refused(
            f"The run holds {got['truncates']} TRUNCATE of {table.table}, which cannot be applied yet.",
            where=job.plan.run_id,
            code="spark.truncate",
            remedy="empty the target's tables by hand, re-sync the table, and begin its batches after the TRUNCATE",
        )
    if got["rows"] != table.rows:
        raise DataAtRisk(
            f"The files of {table.table} have {got['rows']} rows, their manifests say {table.rows}.",
            where=job.plan.run_id,
            code="spark.rows_differ",
            remedy="run `lockstep stage ls` and compare the files with their manifests; restore what was changed",
        )
    return MergeCounts(table.table, got["rows"], got["key_changes"], job.rows_in(folder), got["superseded"])


def moving_keys(job: Job, table: MergeTable) -> list[str]:
    """Shard keys of the targets that wait for this set, outside the table's key."""
    found: dict[str, None] = {}
    for one in job.plan.targets:
        if one.merge_set == job.merge_set.name:
            rule = job.pipeline.target(one.target).table(table.table)
            if rule is not None and rule.sharding is not None and rule.sharding.key not in table.key:
                found[rule.sharding.key] = None
    return list(found)


def merge(job: Job) -> None:
    """Merges a set; counts.json is written last, and only then the set counts as merged."""
    require_unpurged(job.store, [file.batch_id for table in job.merge_set.tables for file in table.files])
    job.store.delete(counts_path(job.plan.merged_folder(job.merge_set.name)))
    tables = [table for table in job.merge_set.tables if table.files]
    size_shuffles(job.spark, max((table.rows for table in tables), default=0))
    counts = each_table(lambda table: merge_table(job, table), tables)
    for one in counts:
        log.info("run %s set %s: %s", job.plan.run_id, job.merge_set.name, one)
    job.store.put(counts_path(job.plan.merged_folder(job.merge_set.name)), counts_to_bytes(counts))


def main(argv: Sequence[str] | None = None) -> int:
    return run("merge", merge, argv)


if __name__ == "__main__":
    leave(main())
