"""Preflight of a target: its servers, and for each logical table every shard of it. What a target must be is one list
(destination.checked_destination); `lockstep check` asks it of all captured tables, a plan of those of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pymysql

from cdc_core.config import MysqlTarget, Pipeline
from cdc_core.errors import ColumnsMissing, LockstepError, TableMissing, TargetAltered, UsageError, combined, parts_of
from cdc_core.meta import Meta, SourceCoverage
from cdc_core.model.readable import counted
from cdc_core.model.run_plan import RunPlan
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import sensible
from cdc_core.operations.apply import left_out
from cdc_core.operations.apply.lost_writes import require_kept
from cdc_core.operations.apply.table_rules import key_of, keys_apart, rows_lacking_values
from cdc_core.operations.check.findings import Findings, connected
from cdc_core.operations.check.loops import require_no_loop
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.stage import horizon as horizons
from cdc_core.stage import start_record
from cdc_core.stage.stores import open_stage
from cdc_core.targets.bookkeeping.ownership import Writer, take
from cdc_core.targets.reading.destination import TableUse, TargetSurvey, checked_destination
from cdc_core.targets.reading.sharding import ShardTable, require_apart, shard_tables
from cdc_core.targets.reading.table_facts import require_server
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.tables.definition_sql import Origin
from cdc_core.targets.tables.make_tables import Actions, WantedTable, make_tables
from cdc_core.targets.tables.target_keys import APART, coarser_columns


@sensible("target")
def identity(connection: pymysql.Connection[Any]) -> str:
    """Identifies a server, however it was reached."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@hostname, @@port, @@datadir")
        return "/".join(str(value) for value in cursor.fetchone() or ())


def check_target(
    pipeline: Pipeline,
    target: MysqlTarget,
    logical: Mapping[str, list[TableSchema]],
    sources: set[str],
    findings: Findings,
    owner: Writer | None = None,
) -> None:
    """`logical`: the captured tables of each logical table; `sources`: identities of the servers we read. owner: as in
    TableUse."""
    subject = f"target {target.name}"
    servers: list[str | None] = []
    with ExitStack() as opened:
        for number, reference in enumerate(target.connections):
            place = subject if len(target.connections) == 1 else f"{subject}, server {number}"
            connection = opened.enter_context(connected(findings, place, reference))
            servers.append(None)
            if connection is not None:
                asked = translating(place)
                servers[-1] = findings.attempt(f"{place}: identity", partial(asked(identity), connection))
                loads = partial(asked(require_server), connection, where=place)
                findings.attempt(f"{place}: bulk load", loads, lambda _: "LOAD DATA LOCAL INFILE is allowed")
    if None in servers:
        return  # said above: no table can be looked at before its server answers
    looped = {number for number, server in enumerate(servers) if server in sources}
    taken = {name: schemas for name, schemas in logical.items() if target.table(name) is not None}
    findings.attempt(f"{subject}: tables", partial(require_apart, target, taken))
    with TargetSurvey(target, taken, loading=False) as survey:  # whether its servers take loads is said above
        for name, schemas in taken.items():
            _logical_table(pipeline, target, name, schemas, looped, findings, survey, owner)


def require_target(
    opened: OpenPipeline,
    plan: RunPlan,
    target_name: str,
    *,
    covered: Callable[[str], SourceCoverage] | None = None,
) -> None:
    """Asks the target all that the jobs of the run will need, for all of its tables, before the first of them starts,
    and whether it still has what earlier runs wrote. A replay may write what it lost. Tables that the stage writes to
    for the first time are taken (ownership.take). covered: of a source by its name; by default meta is asked.

    Raises one error with everything that is wrong (errors.combined).
    """
    target = opened.pipeline.database(target_name)
    problems: list[LockstepError] = []
    if not plan.replay:
        try:
            require_kept(opened, target_name)
        except LockstepError as error:
            if error.retriable:
                raise
            problems.append(error)
    tables = plan.merge_set(plan.target(target_name).merge_set).tables
    tables = tuple(table for table in tables if target.table(table.table) is not None and table.files)
    owner = writer_of(opened.meta, opened.pipeline, target_name)
    if target.existing == "replace" and not all(owner.owns(table.table) for table in tables):
        owner = replace(owner, in_part=left_out.in_part(opened, plan, target_name))
    new: list[tuple[str, ShardTable]] = []
    try:
        followed = _followed(covered or opened.meta.coverages.find, opened.pipeline, target)
        require_apart(target, dict.fromkeys([*(table.table for table in tables), *followed]))
    except LockstepError as error:
        problems.append(error)
    with TargetSurvey(target, [table.table for table in tables]) as survey:
        for table in tables:
            schemas = plan.current_schemas(table)
            try:
                destination = checked_destination(
                    survey,
                    table.table,
                    schemas,
                    TableUse(
                        key=table.key,
                        partial=rows_lacking_values(table) > 0,
                        shared=keys_apart(opened.pipeline, table.table, table.key, table.shared_keys, schemas),
                        pipeline=opened.name,
                        owner=owner,
                    ),
                )
                new += [(table.table, shard.table) for shard in destination.shards if not shard.noted]
            except LockstepError as error:
                problems.append(error)
                if error.retriable:
                    break  # a server that cannot be reached gives the same error for every table
    if problems:
        raise combined(problems)
    take(target, new, owner)


def writer_of(meta: Meta, pipeline: Pipeline, target: str) -> Writer:
    """Raises what opening the stage and reading the starts and horizons of its sources raise."""
    store, sources = open_stage(pipeline.stage), [source.name for source in pipeline.sources]
    purged = {
        table
        for source in sources
        if (horizon := horizons.read(store, source)) is not None and target in horizon.targets
        for table in [*horizon.tables, *(table for coverage in horizon.coverage.values() for table in coverage.feeds)]
    }
    written = set(meta.writes.last(target))
    written |= purged - meta.records.left_out(target, purged - written).keys()
    return Writer(
        pipeline.pipeline, start_record.names(store, sources), frozenset(written), meta.records.seeded(target)
    )


def _followed(covered: Callable[[str], SourceCoverage], pipeline: Pipeline, target: MysqlTarget) -> list[str]:
    """The logical tables that the target takes, of all tables that the sources are known to have: another run may bring
    rows of any of them. Not those for which its rules give no names: they are of no concern to this run."""
    capture = Capture(pipeline.tables, pipeline.routes)
    found: dict[str, None] = {}
    for source in pipeline.sources:
        known = covered(source.name)
        there = capture.as_in(known.surveyed.captured)
        for name, coverage in known.tables.items():
            database, _, table = name.partition(".")
            if not coverage.gone:
                found |= dict.fromkeys(there.route(database, table))
    return [logical for logical in found if target.table(logical) is not None and is_named(target, logical)]


def is_named(target: MysqlTarget, logical: str) -> bool:
    """Whether the rules of the target give its physical tables names."""
    try:
        return bool(shard_tables(target, logical))
    except UsageError:
        return False


def _logical_table(
    pipeline: Pipeline,
    target: MysqlTarget,
    name: str,
    schemas: list[TableSchema],
    looped: set[int],
    findings: Findings,
    survey: TargetSurvey,
    owner: Writer | None,
) -> None:
    """`looped`: numbers of the target's connections that lead to a server we read."""

    def look() -> str:
        key = key_of(target, name, schemas)
        shared = policy is not None and keys_apart(pipeline, name, key, policy.shared_keys, schemas)
        try:
            use = TableUse(key=key, shared=shared, pipeline=pipeline.pipeline, owner=owner, let_in=True)
            destination = checked_destination(survey, name, schemas, use)
        except LockstepError as error:
            for place in shard_tables(target, name):
                if place.connection in looped:
                    require_no_loop(pipeline, place)
            return _require_makeable(target, name, schemas, key, error)
        for shard in destination.shards:
            if shard.table.connection in looped:
                require_no_loop(pipeline, shard.table)
        columns = dict.fromkeys(
            column for shard in destination.shards for column in coarser_columns(shard.facts, schemas)
        )
        if columns:
            findings.warn(
                subject,
                f"it compares the key column(s) {', '.join(columns)} less strictly than the source: rows whose keys "
                "are equal to it stop the run (target.key_collapse)",
                f"give the columns {APART}, unless such rows cannot exist",
            )
        due = [shard.table.name for shard in destination.shards if survey.has_due(shard.table)]
        if due:
            findings.warn(
                subject,
                f"indexes of {', '.join(due[:3])}{', ...' if len(due) > 3 else ''} are due: they were dropped before "
                "the first load, and are built after it",
                "the next run builds them, and `lockstep target create` does",
            )
        return f"{counted(len(destination.shards), 'table')} with the columns and key of the source{apart}"

    subject = f"target {target.name}: {name}"
    feeding = len({(schema.database, schema.table) for schema in schemas})
    policy = target.table(name)
    apart = f"; its {feeding} source tables must not share keys" if feeding > 1 else ""
    if policy is not None and policy.shared_keys == "newest":
        apart = ""
    findings.attempt(subject, look, lambda said: said)


def _require_makeable(
    target: MysqlTarget,
    name: str,
    schemas: list[TableSchema],
    key: tuple[str, ...],
    error: LockstepError,
) -> str:
    """What a run will make of the tables, in words. Raises `error` without that, and why a table cannot be made."""
    rule = target.table(name)
    creates = target.on_missing_table == "create"
    adds = frozenset({name} if rule is not None and rule.on_new_column == "add" else ())
    if not (creates or adds) or not any(isinstance(part, TableMissing | ColumnsMissing) for part in parts_of(error)):
        raise error
    wanted = {name: WantedTable(tuple(map(Origin, schemas)), key, len(schemas) == 1)}
    actions = Actions(create=creates, add=adds, dry=True)
    made = make_tables(target, wanted, actions)
    refused = [table.error for table in made if table.error is not None]
    if refused:
        raise combined(refused)
    new = {table.name for table in made if table.state == "missing" and creates}
    extended = {table.name for table in made if table.state == "exists" and table.statements}
    extended -= {table.name for table in made if any(left.stops for left, _ in table.differences)}
    left = [
        part
        for part in parts_of(error)
        # That the database of a missing table is missing, too, is reported as a table that was altered.
        if not (part.where in new or part.where in extended or (new and isinstance(part, TableMissing | TargetAltered)))
    ]
    if left:
        raise combined(left)
    words = [f"{counted(len(new), 'table')} to create"] if new else []
    words += [f"{counted(len(extended), 'table')} to extend by columns"] if extended else []
    return f"{' and '.join(words)} with the next run, of {len(made)}"
