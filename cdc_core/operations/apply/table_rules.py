"""The rules of a target's tables that a plan is made by, and that each job of the run holds its target to.

Executors import this: nothing here asks the meta database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc_core.config import MysqlTable, Pipeline, Target
from cdc_core.errors import Refused
from cdc_core.model.run_plan import MergeTable, RunPlan
from cdc_core.model.schema import TableSchema
from cdc_core.stage.layout import parse_copied


def key_of(target: Target, table: str, schemas: Sequence[TableSchema]) -> tuple[str, ...]:
    """What identifies a row of the logical table: the target's `key`, or the key of all its source tables; () if
    they have none and the target counts rows.

    Raises Refused (config.table_rule, stage.key).
    """
    rule = target.table(table)
    configured = rule.key if rule is not None else None
    where = f"targets.{target.name}.tables.{table}.key"
    by_key: dict[tuple[str, ...], TableSchema] = {}
    for schema in schemas:
        names = {column.name for column in schema.columns}
        key = configured or schema.key
        missing = [column for column in key if column not in names]
        if missing:
            raise Refused(
                f"The key column {missing[0]!r} of {table!r} is not in its source table {schema.name}, which has "
                f"{', '.join(sorted(names))}.",
                where=where,
                code="config.table_rule",
                remedy="name columns that every source table of this logical table has",
            )
        if not key and not (isinstance(rule, MysqlTable) and rule.no_key == "rows"):
            counts = "set no_key: rows next to it, which counts equal rows, or " if isinstance(rule, MysqlTable) else ""
            others = "" if table in target.tables else ", which then name the others in place of '*'"
            raise Refused(
                f"The source table {schema.name} has no primary key and no unique key without nulls, so nothing "
                f"identifies the rows of {table!r}.",
                where=where,
                code="config.table_rule",
                remedy=f"set {where} to the columns that identify a row, or add a primary key to {schema.name}, or "
                f"{counts}leave {table!r} out of the target's tables{others}",
            )
        by_key.setdefault(key, schema)
    if len(by_key) > 1:
        shown = "; ".join(f"{schema.name}: {', '.join(key) or 'none'}" for key, schema in by_key.items())
        raise Refused(
            f"The rows of {table!r} have different keys in this run: {shown}.",
            where=where,
            code="stage.key",
            remedy=f"set {where} to the columns that identify a row in all of them; where a table got another key, "
            "begin a replay after that (--from; first_batches in Airflow)",
        )
    return next(iter(by_key))


def keys_apart(
    pipeline: Pipeline, table: str, key: Sequence[str], shared_keys: str, schemas: Iterable[TableSchema]
) -> bool:
    """Whether several source tables may feed the logical table and must not share keys: each row says its own.

    schemas: of the source tables that feed it now. shared_keys: as in config.TargetTable.
    """
    alone = all(pipeline.feeds_alone(schema.name, table) for schema in schemas)
    return bool(key) and shared_keys == "stop" and not alone


def rows_lacking_values(table: MergeTable) -> int:
    """Changes whose values the log did not all carry. A copy has all values of its rows, and the deletes of a repair
    need no more than their key."""
    return sum(file.absent_rows for file in table.files if not parse_copied(file.path))


def require_none_set_aside(target: Target, table: MergeTable) -> None:
    """The rules of the target, which may have changed since the run was planned, set no change aside on which a later
    one depends. Raises Refused (config.table_rule)."""
    rule, lacking = target.table(table.table), rows_lacking_values(table)
    if lacking and isinstance(rule, MysqlTable) and rule.on_row_error == "quarantine":
        raise Refused(
            f"{lacking} changes of {table.table!r} lack values and depend on the changes before them, so none may be "
            "set aside.",
            where=f"targets.{target.name}.tables.{table.table}.on_row_error",
            code="config.table_rule",
            remedy="set on_row_error: stop for the table; or SET GLOBAL binlog_row_image = FULL on the source, and "
            "apply the batches from before that with on_row_error: stop",
        )


def require_planned(target: Target, plan: RunPlan) -> None:
    """Raises Refused (run.clear_task) where the rules of a target are not those that the run was planned by."""
    for table, planned in sorted(plan.target(target.name).layouts.items()):
        rule = target.table(table)
        if rule is None or rule.layout != planned:
            raise Refused(
                f"The run was planned for {table!r} as {planned}; the pipeline file now has "
                f"{rule.layout if rule is not None else 'no rule for it'}.",
                where=f"targets.{target.name}.tables.{table}.sharding",
                code="run.clear_task",
                remedy="restore the pipeline file; or clear the run from its plan task on; without Airflow, start "
                "another run, which takes its batches",
            )


def require_layouts(pipeline: Pipeline, plan: RunPlan) -> None:
    """Checks the layouts of all targets of the run. Raises as require_planned."""
    for target in plan.targets:
        require_planned(pipeline.target(target.target), plan)
