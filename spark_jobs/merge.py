"""Merge: finds the last change of each key among all staged changes of a run.

Reads exactly the files of the plan, all tables of a set in one application, each file once. A key change becomes the
delete of the old key and the upsert of the new one. Within a source the last change is the one with the greatest
(_cdc_seq, _cdc_row); between sources the greatest (_cdc_ts, _cdc_source), as the guard compares.
Aggregation is partial first, then shuffled by key: no global sort, nothing collected.
A value that the log did not carry (`_cdc_absent`) is the last older one of the same row (see absent.py); what no change
of the run has stays absent, and the target supplies it. Only tables with such rows pay for the search.
Small tables are merged in memory, all of them in one Spark job (small_tables.py); the rules are the same.

A TRUNCATE undoes the changes of its source table before it; the last one of a run is a row of its own, without a key.
So is the beginning of a copy that takes the place of older rows (cdc_core/snapshot/renewal.py), whatever the policy for
TRUNCATE: it is told apart by its file, which is one of copied rows.
For tables without a key, the rows that come and go are counted (see multiset.py).
The columns of a merged row: model/merged.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.apply.retention import require_unpurged
from cdc_core.model.merged import (
    BORN,
    ENDED_ORIGINS,
    FORMER_SHARD_KEYS,
    KEY_CHAIN,
    LIVE_ORIGINS,
    ORIGIN,
    SHARD_UNKNOWN,
    MergedOp,
)
from cdc_core.model.run import MergeCounts, MergeTable, counts_path, counts_to_bytes
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    DELETE,
    LITERAL,
    OP,
    ROW,
    SEQ,
    SOURCE,
    TRUNCATE,
    TS,
    UPDATE,
    renamed_in_bookkeeping,
)
from cdc_core.model.version import ORIGIN_BYTES, origin_name
from cdc_core.stage.intact import require_intact
from spark_jobs.absent import filled, if_known, known_value, through_key_changes, with_literals
from spark_jobs.columns import c
from spark_jobs.job import Job, each_table, leave, log, run
from spark_jobs.key_changes import ARRIVED, COUNTS, LACKS, LOST, SIDE, key_names, keys, lacks, split
from spark_jobs.merge_rules import checked, fillable, moving_keys, row_columns, source_names, truncate_rule
from spark_jobs.multiset import NET, batch_of_row, each_copy, nets
from spark_jobs.session import size_shuffles
from spark_jobs.small_tables import merge_large, merge_small
from spark_jobs.truncates import Truncate, may_have

_WINNER = "_cdc_winner"
_TRUNCATE_OF = "_cdc_truncate_of"
_KEPT = (OP, TS, SOURCE, SEQ, ROW, LITERAL)


@dataclass(frozen=True, slots=True)
class MergeRule:
    """What decides the last change of each key of a table.

    columns: of the row, unified. moving: shard keys outside the key. sources: how many there are.
    fill: columns that some change lacks and an older one may have.
    shared: changes have `_cdc_origin`; among rows that several source tables have under one key, a live one comes
    before those that were deleted.
    """

    columns: T.StructType
    key: Sequence[str]
    moving: Sequence[str] = ()
    sources: int = 1
    fill: Sequence[str] = ()
    shared: bool = False


def winners(changes: DataFrame, rule: MergeRule) -> DataFrame:
    """The last change of each key, with `_cdc_changes`, `_cdc_key_changes`, `_cdc_truncates` and `_cdc_lost` (changes
    that do not have their key) of the key.

    changes: staged columns, the row's already unified.
    """
    sides = split(changes, rule.columns, rule.key, rule.moving)
    chained = KEY_CHAIN in sides.columns
    last = _last_of_each_source(sides, rule, chained=chained)
    if rule.sources > 1 or rule.shared:
        last = _last_between_sources(last, rule, chained=chained)
    return _merged_rows(last, rule, chained=chained)


def _last_of_each_source(sides: DataFrame, rule: MergeRule, *, chained: bool) -> DataFrame:
    """By key, source and origin: the change with the greatest order key, and the totals of all of them."""
    origin = [ORIGIN] if rule.shared else []
    payload = F.struct(*[c(field.name) for field in rule.columns], *[c(name) for name in (*_KEPT, LACKS, *origin)])
    order = F.struct(c(SEQ), c(ROW))
    totals = [
        F.count(F.lit(1)).alias(COUNTS[0]),
        F.sum(c(SIDE)).cast("bigint").alias(COUNTS[1]),
        F.sum((c(OP) == TRUNCATE).cast("bigint")).alias(COUNTS[2]),
        F.sum(c(LOST)).cast("bigint").alias(LOST),
        F.max(c(ARRIVED)).alias(BORN),
        F.max(c(SHARD_UNKNOWN)).alias(SHARD_UNKNOWN),
        *[_last_value(name, order).alias(filled(at)) for at, name in enumerate(rule.fill)],
        *[F.collect_set(c(_was(at))).alias(_was(at)) for at in range(len(rule.moving))],
    ]
    if chained:
        totals.append(F.max_by(c(KEY_CHAIN), F.when(c(ARRIVED), order)).alias(KEY_CHAIN))
    for at, name in enumerate(rule.moving):
        moved = (c(OP) == UPDATE) & ~c(BEFORE, name).eqNullSafe(c(name))
        sides = sides.withColumn(_was(at), F.when(c(OP) == DELETE, c(name)).when(moved, c(BEFORE, name)))
    groups = [*keys(rule.columns, rule.key), *([c(SOURCE)] if rule.sources > 1 else []), *[c(name) for name in origin]]
    return sides.groupBy(*groups).agg(F.max_by(payload, order).alias(_WINNER), *totals)


def _last_between_sources(last: DataFrame, rule: MergeRule, *, chained: bool) -> DataFrame:
    """By key: among the last changes of the sources, the one with the latest commit, then by name."""
    # Two aggregations, because no single order of changes is right for both: within a source the log decides, whatever
    # its clock did; between sources the clock decides.
    live = c(_WINNER, OP) != DELETE
    origin = [ORIGIN] if rule.shared else []
    between = F.struct(*([live] if rule.shared else []), c(_WINNER, TS), c(_WINNER, SOURCE), *origin)
    totals = [
        *[F.sum(c(name)).alias(name) for name in COUNTS],
        *[F.max(c(name)).alias(name) for name in (BORN, SHARD_UNKNOWN)],
        *[F.array_distinct(F.flatten(F.collect_list(c(_was(at))))).alias(_was(at)) for at in range(len(rule.moving))],
    ]
    for at in range(len(rule.fill)):
        # The row of another origin is another row: its values are not this one's.
        among = between if rule.shared else F.when(c(filled(at)).isNotNull(), between)
        totals.append(F.max_by(c(filled(at)), among).alias(filled(at)))
    if chained:
        totals.append(F.max_by(c(KEY_CHAIN), between).alias(KEY_CHAIN))
    if rule.shared:
        totals.append(F.sum(live.cast("bigint")).alias(LIVE_ORIGINS))
        totals.append(F.collect_set(F.when(~live, c(ORIGIN))).alias(ENDED_ORIGINS))
    # A truncate has no key: those of several source tables are apart.
    apart = [F.when(c(_WINNER, OP) == TRUNCATE, c(ORIGIN)).alias(_TRUNCATE_OF)] if rule.shared else []
    by_key = last.groupBy(*[c(name) for name in key_names(rule.key)], *apart)
    return by_key.agg(F.max_by(c(_WINNER), between).alias(_WINNER), *totals)


def _merged_rows(last: DataFrame, rule: MergeRule, *, chained: bool) -> DataFrame:
    """The columns of model/merged.py, and COUNTS."""
    former = F.struct(*[c(_was(at)).alias(name) for at, name in enumerate(rule.moving)]).alias(FORMER_SHARD_KEYS)
    number = {name: at for at, name in enumerate(rule.fill)}
    lacking = [lacks(name, _WINNER) for name in rule.fill]
    absent = _still_absent(rule.fill)
    values = [
        F.when(lacking[number[name]], c(filled(number[name]), "v")).otherwise(c(_WINNER, name)).alias(name)
        if name in number
        else c(_WINNER, name).alias(name)
        for name in rule.columns.fieldNames()
    ]
    return last.select(
        *values,
        _merged_op(c(_WINNER, OP)).alias(OP),
        *[c(_WINNER, name).alias(name) for name in _KEPT if name not in (OP, LITERAL)],
        with_literals(c(_WINNER, LITERAL), rule.fill, lacking).alias(LITERAL),
        absent.alias(ABSENT),
        c(BORN),
        *([former, c(SHARD_UNKNOWN)] if rule.moving else []),
        *([F.when(absent.isNotNull(), c(KEY_CHAIN)).alias(KEY_CHAIN)] if chained else []),
        *([c(_WINNER, ORIGIN).alias(ORIGIN), _ended().alias(ENDED_ORIGINS), c(LIVE_ORIGINS)] if rule.shared else []),
        *[c(name) for name in COUNTS],
    )


def _merged_op(staged: Column) -> Column:
    return (
        F.when(staged == DELETE, F.lit(MergedOp.DELETE))
        .when(staged == TRUNCATE, F.lit(MergedOp.TRUNCATE))
        .otherwise(F.lit(MergedOp.UPSERT))
    )


def _ended() -> Column:
    """The origins of a key that ended with a delete, except the winner's; null if there are none."""
    others = F.array_sort(F.array_except(c(ENDED_ORIGINS), F.array(c(_WINNER, ORIGIN))))
    return F.when(F.size(others) > 0, F.concat_ws(",", others))


def _last_value(name: str, order: Column) -> Column:
    """The value of a column in the last change that settles it; null if none does."""
    settles, value = known_value(name)
    return if_known(F.max_by(F.when(settles, value), F.when(settles, order)))


def _still_absent(fill: Sequence[str]) -> Column:
    if not fill:
        return F.lit(None).cast("string")
    rest = F.array_compact(
        F.array(*[F.when(lacks(name, _WINNER) & c(filled(at)).isNull(), F.lit(name)) for at, name in enumerate(fill)])
    )
    return F.when(F.size(rest) > 0, F.to_json(rest))


def _was(at: int) -> str:
    return f"_cdc_was{at}"


def read_changes(job: Job, table: MergeTable, columns: T.StructType) -> DataFrame:
    """The staged rows of the plan's files, with the row's columns unified."""
    found: DataFrame | None = None
    for schema, rows in job.staged(table):
        names = {column.name.lower(): column.name for column in schema.columns}
        now = [_fitted(field, names) for field in columns]
        was = F.struct(*[_fitted(field, names, BEFORE) for field in columns])
        part = rows.select(
            *now,
            F.when(c(BEFORE).isNotNull(), was).alias(BEFORE),
            *[c(name) for name in (OP, TS, SOURCE, SEQ, ROW)],
            _literal(columns, schema),
            _lacking(columns, schema),
            *([] if table.key else [batch_of_row(table)]),
            *([_origin(schema).alias(ORIGIN)] if job.shared(table) else []),
        )
        found = part if found is None else found.unionByName(part)
    assert found is not None  # a table of a plan has files
    return found


def _origin(schema: TableSchema) -> Column:
    """As model.version.origin_name has it."""
    name = F.concat_ws("/", c(SOURCE), F.lit(schema.name))
    return F.substring(F.sha2(name, 256), 1, ORIGIN_BYTES)


def _literal(columns: T.StructType, schema: TableSchema) -> Column:
    """`_cdc_literal` by the names that the unified columns have."""
    literal, others = c(LITERAL), _other_names(columns, schema)
    if others is not None:
        literal = F.transform_keys(literal, lambda name, _: F.coalesce(others[name], name))
    return literal.alias(LITERAL)


def _other_names(columns: T.StructType, schema: TableSchema) -> Column | None:
    """A map of the names in the bookkeeping that the definition spells in another letter case than the unified columns;
    None if there are none."""
    unified = {field.name.lower(): field.name for field in columns}
    found = renamed_in_bookkeeping((one.name, unified.get(one.name.lower(), one.name)) for one in schema.columns)
    return F.create_map(*[F.lit(name) for pair in found.items() for name in pair]) if found else None


def _lacking(columns: T.StructType, schema: TableSchema) -> Column:
    """The names in `_cdc_absent`, as the unified columns have them. Nothing can fill a virtual column that MariaDB does
    not log; where such rows would have to fill a plain column of the target, the target was refused before."""
    computed = [mark + column.name for column in schema.columns if not column.logged for mark in ("", BEFORE_MARK)]
    names = F.from_json(c(ABSENT), T.ArrayType(T.StringType()))
    if computed:
        names = F.filter(names, lambda name: ~name.isin(computed))
    others = _other_names(columns, schema)
    if others is not None:
        names = F.transform(names, lambda name: F.coalesce(others[name], name))
    return names.alias(LACKS)


def _fitted(field: T.StructField, names: dict[str, str], *inside: str) -> Column:
    own = names.get(field.name.lower())
    value = F.lit(None) if own is None else c(*inside, own)
    return value.cast(field.dataType).alias(field.name)


def merge_table(job: Job, table: MergeTable) -> MergeCounts:
    """Writes the winners of one table; its counts.

    Raises DataAtRisk (spark.rows_differ, spark.absent_values), Refused (spark.truncate).
    """
    columns = row_columns(job, table)
    changes = read_changes(job, table, columns)
    # What begins a table again is found without a merge, which would be of all copied rows.
    truncates = _truncates(job, table, renewals=True)
    got: dict[str, int] | None = None
    if not truncates:
        got, folder = _write_winners(job, table, columns, changes)
        truncates = _truncates(job, table) if got["truncates"] else []
    elif any(not may_have(file, renews=True) for file in table.files):
        truncates = _truncates(job, table)
    undone = 0
    if got is None or truncates:
        rows = changes.count() if got is None else got["rows"]
        kept = _from_truncates_on(job, table, changes, truncates)
        undone = rows - kept.count()
        got, folder = _write_winners(job, table, columns, kept)
    rule = truncate_rule(job, table)
    files = job.files_in(folder)
    return checked(
        table,
        job.plan.run_id,
        rows=got["rows"],
        undone=undone,
        key_changes=got["key_changes"],
        superseded=got["superseded"],
        lost=got["lost"],
        winners=sum(job.rows_of(files)),
        removing=[rule.version(one) for one in rule.last(truncates)],
        files=[path.removeprefix(f"{job.merged(table.table)}/") for path in files],
    )


def _truncates(job: Job, table: MergeTable, *, renewals: bool = False) -> list[Truncate]:
    """The last ones of each source table and kind. renewals: only the beginnings of copies."""
    found = []
    for renews in (True,) if renewals else (True, False):
        files = [file for file in table.files if may_have(file, renews=renews)]
        for schema, rows in job.staged(replace(table, files=tuple(files))):
            last = F.max(F.struct(c(SEQ), c(ROW), F.unix_micros(c(TS)).alias(TS)))
            of_source = (
                rows.where(c(OP) == TRUNCATE).groupBy(c(SOURCE)).agg(last.alias("last"), F.count("*").alias("n"))
            )
            for source, (seq, row, ts_us), count in of_source.collect():
                found.append(Truncate(source, schema.name, seq, row, ts_us, renews, count))
    return found


def _from_truncates_on(job: Job, table: MergeTable, changes: DataFrame, truncates: Sequence[Truncate]) -> DataFrame:
    """The changes from the last truncate of their source table on, it among them, and no other truncate.

    Raises Refused (spark.truncate).
    """
    kept, is_last = F.lit(True), F.lit(False)
    for one in truncate_rule(job, table).last(truncates):
        mine = c(ORIGIN) == origin_name(*one.table) if job.shared(table) else c(SOURCE) == one.source
        same = mine & (c(SEQ) == one.seq) & (c(ROW) == one.row)
        later = (c(SEQ) > one.seq) | ((c(SEQ) == one.seq) & (c(ROW) > one.row))
        kept, is_last = kept & (~mine | later | same), is_last | same
    return changes.where(kept & ((c(OP) != TRUNCATE) | is_last))


def _last_of_each(job: Job, table: MergeTable, columns: T.StructType, changes: DataFrame) -> DataFrame:
    fill = fillable(job, table, columns.fieldNames())
    if fill:
        changes = through_key_changes(changes, columns, table.key, fill)
    sources = len(source_names(table))
    return winners(changes, MergeRule(columns, table.key, moving_keys(job, table), sources, fill, job.shared(table)))


def _write_winners(
    job: Job, table: MergeTable, columns: T.StructType, changes: DataFrame
) -> tuple[dict[str, int], str]:
    """What was counted, and the folder of the files: one of this attempt's own. What Spark still does for one that was
    killed ends with files, or by removing files, in another."""
    if table.key:
        last, kept = _last_of_each(job, table, columns, changes), F.lit(1)
    else:
        last, kept = nets(changes, columns, absent=bool(table.absent_rows)), F.abs(c(NET))
    seen = Observation()
    changes_of_key, key_changes, truncates, lost = (c(name) for name in COUNTS)
    observed = last.observe(
        seen,
        F.sum(changes_of_key - key_changes).alias("rows"),
        F.sum(key_changes).alias("key_changes"),
        F.sum(changes_of_key - kept).alias("superseded"),
        F.sum(truncates).alias("truncates"),
        F.sum(lost).alias("lost"),
    )
    rows = observed.drop(*COUNTS)
    rows = rows if table.key else each_copy(rows)
    job.clear(job.merged(table.table))
    folder = f"{job.merged(table.table)}/{uuid.uuid4().hex}"
    rows.write.parquet(job.store.spark_uri(folder))
    return {name: int(value or 0) for name, value in seen.get.items()}, folder


def merge_tables(job: Job, tables: Sequence[MergeTable]) -> list[MergeCounts]:
    """Writes the winners of the tables; their counts. Small tables share a Spark job (small_tables.py)."""
    counts = merge_small(job, tables)
    for table in tables:
        if table.table not in counts and (one := merge_large(job, table)) is not None:
            counts[table.table] = one
    large = [table for table in tables if table.table not in counts]
    if large:
        size_shuffles(job.spark, max(table.rows for table in large))
    counts |= {one.table: one for one in each_table(lambda table: merge_table(job, table), large)}
    return [counts[table.table] for table in tables]


def merge(job: Job) -> None:
    """Merges a set; writes counts.json last, and only then does the set count as merged.

    Raises DataAtRisk (stage.missing, stage.damaged) for a file that is not as it was staged, before any row is used;
    Refused (plan.purged) for files that were purged, also while they were read.
    """
    files = [file for table in job.merge_set.tables for file in table.files]
    require_unpurged(job.store, [file.batch_id for file in files])
    tables = [table for table in job.merge_set.tables if table.files]
    with job.reading_staged():
        require_intact(job.store, files)
        job.store.delete(counts_path(job.plan.merged_folder(job.merge_set.name)))
        counts = merge_tables(job, tables)
    for one in counts:
        log.info("run %s set %s: %s", job.plan.run_id, job.merge_set.name, one)
    job.store.put(counts_path(job.plan.merged_folder(job.merge_set.name)), counts_to_bytes(counts))


def main(argv: Sequence[str] | None = None) -> int:
    return run("merge", merge, argv)


if __name__ == "__main__":
    from spark_jobs import merge as this

    leave(this.main())
