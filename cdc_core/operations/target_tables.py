"""The tables of targets, made from the definitions that the sources have now.

`create` is for all captured tables of a pipeline. `make_ready` is for a run: it makes what the tables of its plan
lack, as the pipeline file allows. The rows that are staged decide about columns, types and keys; the source adds
defaults, comments and further indexes where its columns are still the same. Without the source a run does without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pymysql

from cdc_core.config import IcebergTarget, MysqlTarget, Pipeline, Source
from cdc_core.errors import (
    ColumnsMissing,
    DataAtRisk,
    ExistingRows,
    LockstepError,
    RetryLater,
    TableMissing,
    combined,
    parts_of,
)
from cdc_core.meta import Meta
from cdc_core.model.run_plan import RunPlan, TargetRun
from cdc_core.model.schema import Column, TableSchema
from cdc_core.mysql.connections import answers, connect, resolve
from cdc_core.operations.apply.table_rules import key_of
from cdc_core.operations.check.check_targets import identity, require_target
from cdc_core.operations.check.loops import require_no_loop
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.renamed_columns import followed_renames, renames_of, statements_of
from cdc_core.source.capture import Capture
from cdc_core.source.host.near_names import table_names
from cdc_core.source.host.server_facts import lower_case_names
from cdc_core.source.host.table_survey import find_tables
from cdc_core.source.schemas.column_defaults import column_defaults
from cdc_core.targets.reading.sharding import shard_tables
from cdc_core.targets.tables.definition_sql import Origin
from cdc_core.targets.tables.make_tables import Actions, MadeTable, WantedTable, make_tables, missing_tables
from cdc_core.targets.tables.table_definition import LITERAL, TableDefinition, read_definitions
from cdc_core.targets.tables.table_differences import Literals

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedTables:
    """What all sources have: the origins of each logical table; tables that no target can take, with the reason; and
    the servers' identities (check_targets.identity)."""

    origins: Mapping[str, Sequence[Origin]]
    problems: Mapping[str, str] = field(default_factory=dict)
    servers: frozenset[str] = frozenset()


def source_tables(pipeline: Pipeline, *, only: Collection[str] | None = None) -> CapturedTables:
    """The captured tables as they are now. only: of these logical tables. Raises what connecting and the rules of
    `tables` raise."""
    origins: dict[str, list[Origin]] = {}
    problems: dict[str, str] = {}
    servers: set[str] = set()
    for source in pipeline.sources:
        with _connected(source) as connection, answers(source.name):
            servers.add(identity(connection))
            capture = _capture(pipeline, connection)
            wanted = capture.route if only is None else _only(capture, frozenset(only))
            tables = find_tables(connection, lambda database, table, wanted=wanted: bool(wanted(database, table)))  # type: ignore[misc]
            schemas = []
            for table in tables:
                if table.schema is not None and not table.problem:
                    schemas.append(table.schema)
                elif table.kind == "table":
                    problems[table.name] = table.problem
            for origin in _origins(connection, capture, schemas):
                for logical in wanted(*_name(origin)):
                    origins.setdefault(logical, []).append(origin)
    return CapturedTables(origins, problems, frozenset(servers))


def _only(capture: Capture, names: frozenset[str]) -> Callable[[str, str], tuple[str, ...]]:
    return lambda database, table: tuple(logical for logical in capture.route(database, table) if logical in names)


def _name(origin: Origin) -> tuple[str, str]:
    return origin.schema.database, origin.schema.table


def _capture(pipeline: Pipeline, connection: pymysql.Connection[Any]) -> Capture:
    return Capture(pipeline.tables, pipeline.routes, lower_case=lower_case_names(connection))


def _connected(source: Source) -> Any:
    """A connection to the first of a source's servers that answers."""
    for number, reference in enumerate(source.connections, 1):
        try:
            return connect(resolve(reference), where=source.name)
        except RetryLater:
            if number == len(source.connections):
                raise
    raise AssertionError("unreachable")


def _origins(connection: pymysql.Connection[Any], capture: Capture, schemas: Sequence[TableSchema]) -> Iterable[Origin]:
    by_database: dict[str, list[TableSchema]] = {}
    for schema in schemas:
        by_database.setdefault(schema.database, []).append(schema)
    for database, mine in by_database.items():
        definitions = read_definitions(connection, database, [schema.table for schema in mine])
        for schema in mine:
            definition = definitions.get(schema.table)
            if definition is None:  # dropped meanwhile
                continue
            literal = any(column.default == LITERAL for column in definition.columns)
            literals = column_defaults(connection, schema) if literal else {}
            masked = frozenset(column.name.lower() for column in schema.columns if capture.masks(schema, column.name))
            yield Origin(capture.shape(schema), definition, literals, masked)


def literals_of(connection: pymysql.Connection[Any], definition: TableDefinition) -> Literals:
    columns = tuple(
        Column(column.name, column.type, column.nullable, generated=bool(column.generated))
        for column in definition.columns
    )
    return column_defaults(connection, TableSchema(definition.database, definition.table, columns))


def create(
    pipeline: Pipeline,
    target: MysqlTarget,
    tables: CapturedTables,
    actions: Actions,
    *,
    made: Callable[[MadeTable], None] = lambda table: None,
) -> list[MadeTable]:
    """Makes the tables of a target for all captured tables that it takes.

    Raises Refused (check.loop), and what make_tables does. Errors of single tables are in the results.
    """
    wanted: dict[str, WantedTable] = {}
    results: list[MadeTable] = []
    for logical, origins in sorted(tables.origins.items()):
        if target.table(logical) is None:
            continue
        try:
            key = key_of(target, logical, [origin.schema for origin in origins])
        except LockstepError as error:
            results.append(MadeTable(logical, logical, "missing", error=error))
            made(results[-1])
            continue
        wanted[logical] = WantedTable(tuple(origins), key, _alone(origins))
    _require_no_loops(pipeline, target, wanted, tables.servers)
    return results + make_tables(target, wanted, actions, literals_of=literals_of, made=made)


def _alone(origins: Sequence[Origin]) -> bool:
    """Whether one table feeds a logical one. Another that appears later makes unique values of both collide, which
    stops a run with an error; no index at all would be silent."""
    return len(origins) == 1


def _require_no_loops(
    pipeline: Pipeline, target: MysqlTarget, logicals: Iterable[str], servers: Collection[str]
) -> None:
    ours = {}
    for number, reference in enumerate(target.connections):
        with connect(resolve(reference), where=reference) as connection, answers(reference):
            ours[number] = identity(connection)
    for logical in logicals:
        for place in shard_tables(target, logical):
            if ours[place.connection] in servers:
                require_no_loop(pipeline, place)


def create_missing(opened: OpenPipeline, targets: Sequence[MysqlTarget]) -> list[MadeTable]:
    """Creates the tables that these targets lack, of all captured ones: those that were created, and those that could
    not be, with their errors. Definitions are read only where a table is missing. Raises what `create` does.

    Logical tables that were written before are left to the runs, which ask whether that is safe (require_any_ready).
    A table of which nothing is staged stops no run.
    """
    lacking: dict[str, tuple[MysqlTarget, frozenset[str]]] = {}
    logicals = _captured(opened.pipeline)
    for target in targets:
        written = opened.meta.writes.last(target.name)
        taken = [logical for logical in logicals if target.table(logical) is not None and not written.get(logical)]
        missing = missing_tables(target, taken)
        if missing:
            lacking[target.name] = target, frozenset(missing)
    if not lacking:
        return []
    tables = source_tables(opened.pipeline, only=frozenset().union(*(names for _, names in lacking.values())))
    results: list[MadeTable] = []
    for target, names in lacking.values():
        mine = {logical: origins for logical, origins in tables.origins.items() if logical in names}
        results += create(opened.pipeline, target, replace(tables, origins=mine), Actions())
    return [result for result in results if result.state == "created" or result.error is not None]


def _captured(pipeline: Pipeline) -> list[str]:
    """The logical tables of everything that is captured now."""
    found: dict[str, None] = {}
    for source in pipeline.sources:
        with _connected(source) as connection, answers(source.name):
            capture = _capture(pipeline, connection)
            for name in table_names(connection):
                database, _, table = name.partition(".")
                found |= dict.fromkeys(capture.route(database, table))
    return list(found)


def require_any_ready(opened: OpenPipeline, plan: RunPlan) -> dict[str, LockstepError]:
    """require_target for each target that has batches, after what the tables of the plan lack was made, where the
    pipeline file says so: the errors of those that fail, by name, if others can continue. If none can, raises the
    errors of all. A target that lacks nothing is asked once, and the sources only after statements that define tables.
    """
    for target in () if plan.replay else plan.targets:
        try:
            _follow(opened, plan, target)
        except LockstepError as error:
            log.warning("%s: its columns do not follow those of the sources yet: %s", target.target, error)
    due = [target.target for target in plan.targets if target.batches]
    covered = cache(opened.meta.coverages.find)  # the same for each target
    failed: dict[str, LockstepError] = {}
    for name in due:
        try:
            if isinstance(opened.pipeline.target(name), IcebergTarget):
                require_ready(opened, plan, name)
            else:
                _require_or_make(opened, plan, name, partial(require_target, opened, plan, name, covered=covered))
        except LockstepError as error:
            failed[name] = error
    if failed and len(failed) == len(due):
        raise combined(list(failed.values()))
    return failed


def require_ready(opened: OpenPipeline, plan: RunPlan, name: str) -> None:
    """What a target's first task asks of it once more. Raises as require_target and require_lake."""
    if isinstance(opened.pipeline.target(name), IcebergTarget):
        from cdc_core.operations.lake.lake_ready import require_lake

        require_lake(opened, plan, name)
    else:
        require_target(opened, plan, name)


def _require_or_make(opened: OpenPipeline, plan: RunPlan, name: str, require: Callable[[], None]) -> None:
    try:
        require()
    except LockstepError as error:
        if not make_ready(opened, plan, name, error):
            raise
        require()


def make_ready(opened: OpenPipeline, plan: RunPlan, name: str, error: LockstepError) -> bool:
    """Makes what the target lacks for the tables of a plan; whether anything was made.

    error: what require_target has found. Raises DataAtRisk (target.layout), what make_tables raises, and the errors of
    tables that cannot be made.
    """
    target = opened.pipeline.database(name)
    parts = parts_of(error)
    if any(isinstance(part, ExistingRows) for part in parts):  # nothing is changed before a person has decided on them
        return False
    tables = [
        table
        for table in plan.merge_set(plan.target(name).merge_set).tables
        if target.table(table.table) and table.files
    ]
    add = frozenset(
        table.table for table in tables if (rule := target.table(table.table)) and rule.on_new_column == "add"
    )
    creates = target.on_missing_table == "create" and any(isinstance(part, TableMissing) for part in parts)
    if not creates and not (add and any(isinstance(part, ColumnsMissing) for part in parts)):
        return False
    if creates and not plan.replay:
        _require_unmoved(opened.meta, target, [table.table for table in tables])
    try:
        present = source_tables(opened.pipeline, only=[table.table for table in tables]).origins
    except LockstepError as unreachable:
        log.warning("%s: its tables are made without asking the source: %s", name, unreachable)
        present = {}
    wanted, renames = {}, renames_of(opened.meta, opened.pipeline)
    for table in tables:
        schemas, now = plan.current_schemas(table), present.get(table.table, ())
        origins = _staged_origins(schemas, now)
        renamed = followed_renames(renames.get(table.table, ()), [origin.schema for origin in now], plan, table)
        wanted[table.table] = WantedTable(tuple(origins), table.key, _alone(origins), renamed)
    return _made(target, wanted, Actions(create=creates, add=add))


def _follow(opened: OpenPipeline, plan: RunPlan, run: TargetRun) -> None:
    """Does at the target's tables what statements of the run's batches did to the columns of their source tables: no
    row of them need have come since. Raises what `make_tables`, `key_of` and `follow_columns` raise, and what
    connecting raises."""
    target = opened.pipeline.target(run.target)
    redefined: set[str] = set()
    for source in opened.pipeline.sources if run.batches else ():
        batches = [batch for batch in opened.meta.batches.find(source.name) if batch.batch_id in run.batches]
        begin = min((batch.begin.seq for batch in batches), default=0)
        end = max((batch.end.seq for batch in batches), default=0)
        redefined |= {name for definition, name in statements_of(opened.meta, source) if begin <= definition.seq < end}
    add = {
        logical for logical in redefined if (rule := target.table(logical)) is not None and rule.on_new_column == "add"
    }
    if not add:
        return
    renames = renames_of(opened.meta, opened.pipeline)
    staged = {table.table: table for table in plan.merge_set(run.merge_set).tables}
    wanted = {}
    for logical, origins in source_tables(opened.pipeline, only=add).origins.items():
        schemas, mine = [origin.schema for origin in origins], renames.get(logical, ())
        renamed = followed_renames(mine, schemas, plan, staged.get(logical))
        if renamed == mine:
            wanted[logical] = WantedTable(tuple(origins), key_of(target, logical, schemas), _alone(origins), renamed)
    if isinstance(target, MysqlTarget):
        _made(target, wanted, Actions(create=False, add=frozenset(wanted)))
    elif wanted:
        from cdc_core.operations.lake.lake_ready import follow_columns

        follow_columns(opened, target, wanted)


def _made(target: MysqlTarget, wanted: Mapping[str, WantedTable], actions: Actions) -> bool:
    """Whether anything was made. Raises what make_tables raises, and why a table could not be made or altered."""
    results = make_tables(target, wanted, actions, literals_of=literals_of)
    for made in results:
        for note in made.notes if made.state == "created" else ():
            log.info("%s: %s", made.name, note)
        if made.error is not None:
            log.error("%s: %s", made.name, made.error)
    # A table that somebody has made otherwise than Lockstep would may lack nothing: whoever asks again finds out.
    if refused := [
        result.error
        for result in results
        if result.error is not None and (result.state == "missing" or result.statements)
    ]:
        raise combined(refused)
    return any(made.state in ("created", "altered") for made in results)


def _require_unmoved(meta: Meta, target: MysqlTarget, logicals: Sequence[str]) -> None:
    """Raises DataAtRisk (target.layout) where tables are missing under names that the rows were never written to.

    Those that were written to and are missing now may be made: the run then finds that their writes are lost.
    """
    written = meta.writes.last(target.name)
    for logical, names in missing_tables(target, logicals).items():
        shards = written.get(logical, {})
        new = [name for name in names if name not in shards]
        if shards and new:
            raise DataAtRisk(
                f"{new[0]} does not exist on the target, and the rows of {logical!r} are in {min(shards)}: a new "
                "table would get only the new changes.",
                where=new[0],
                code="target.layout",
                remedy="restore the former names in the target's rules, rename the table on the target, or give the "
                "target a new name, so that everything staged is applied to it",
            )


def _staged_origins(schemas: Sequence[TableSchema], present: Sequence[Origin]) -> list[Origin]:
    """The origins of the staged rows, with what the source says beside, and of other tables that feed the logical
    one."""
    known: dict[str, list[Origin]] = {}
    for origin in present:
        known.setdefault(origin.schema.name, []).append(origin)
    found = []
    for schema in schemas:
        same = known.get(schema.name)
        found.append(replace(same.pop(0), schema=schema) if same else Origin(schema))
    return found + [origin for rest in known.values() for origin in rest]
