"""Preflight of a source: its server, our position in its log, and the tables that match."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pymysql

from cdc_core.config import MysqlTable, Pipeline, Source
from cdc_core.errors import Refused
from cdc_core.model.coverage import TableCoverage, lacks
from cdc_core.model.position import Checkpoint
from cdc_core.model.readable import counted, some_of
from cdc_core.model.schema import TableSchema
from cdc_core.mysql import connections
from cdc_core.mysql.connections import quote
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.operations.check.findings import Findings
from cdc_core.operations.check.rules import Seen
from cdc_core.operations.copy.throttle import Throttle
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server
from cdc_core.source.host.failover import fail_over, is_other_server
from cdc_core.source.host.near_names import did_you_mean, question, table_names
from cdc_core.source.host.server_facts import lower_case_names
from cdc_core.source.host.start_position import find_start
from cdc_core.source.host.table_survey import (
    FoundTable,
    engine_advice,
    find_tables,
    locked_for_copies,
    may_lock,
    proven_empty,
    rows_before,
)
from cdc_core.source.schemas.cascades import require_seen_cascades
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.wire import replica_identity

MOST_TABLES = 10
"""How many tables one finding names."""
EXISTING_ROWS = "existing rows"
"""The subject of what is said of them, after the source's name."""


@dataclass(frozen=True, slots=True)
class CheckedTables:
    """logical: the captured tables as they are now, with their captured columns, by the logical tables that they feed.
    seen: None where not all is known."""

    logical: Mapping[str, list[TableSchema]]
    seen: Seen | None


def check_server(
    source: Source,
    address: connections.Server,
    connection: pymysql.Connection[Any],
    stored: Checkpoint | None,
    findings: Findings,
    subject: str,
    replica_host: str,
) -> None:
    """replica_host: the extractor's own name as a replica; "" before its first lease."""
    facts = findings.attempt(f"{subject}: server", lambda: source_server.facts(connection))
    if facts is None:
        return
    ours = any(replica.host == replica_host for replica in facts.replicas)
    facts = facts.without_replica(replica_host)
    said = _said(facts, source)
    if ours:
        said["server_id"] = f"{source.server_id} is in use, by this pipeline's own extractor"

    def server_id_free(known: source_server.ServerFacts, of: Source) -> None:
        source_server.require_free_server_id(known, of)
        replica_identity.require_unclaimed(connection, of.server_id, replica_host, source=of.name)

    for name, requirement in source_server.PREFLIGHT:
        findings.attempt(
            f"{subject}: {name}",
            partial(server_id_free if name == "server_id" else requirement, facts, source),
            lambda _, name=name: said[name],  # type: ignore[misc]
        )
    for advise in source_server.ADVICE:
        name = advise.__name__.removeprefix("advise_").replace("_", " ")
        advice = advise(facts)
        if advice is None:
            findings.ok(f"{subject}: {name}", said[name])
        else:
            findings.warn(f"{subject}: {name}", advice.what, advice.remedy)
    order = source_server.advise_gtid_order(facts, source)
    if order is not None:
        findings.warn(f"{subject}: gtid order", order.what, order.remedy)
    if stored is not None and is_other_server(stored, facts):
        if len(source.connections) > 1:
            findings.ok(f"{subject}: position", f"not this server's: {stored.server} was read, up to {stored.position}")
            return
        findings.attempt(
            f"{subject}: position",
            lambda: fail_over(source, connection, address, facts, stored),
            lambda found: f"another server than before; it would continue at {found.start.position}",
        )
        return
    start = findings.attempt(
        f"{subject}: position",
        lambda: find_start(source, connection, stored, server=address),
        lambda found: f"{'continues' if stored else 'begins'} at {found.position}, which the server still has",
    )
    if start is not None and stored is not None:
        near = source_server.advise_position(facts, source_server.binlog_files(connection), stored)
        if near is not None:
            findings.warn(f"{subject}: purge", near.what, near.remedy)


def check_throttle(
    pipeline: Pipeline,
    source: Source,
    connection: pymysql.Connection[Any],
    findings: Findings,
    subject: str,
) -> None:
    """Whether the account may ask for each limit of snapshot.throttle, here and at the replicas that it names."""
    with Throttle(pipeline.snapshot.throttle, source=source.name) as throttle:
        for name, ask in throttle.questions().items():
            findings.attempt(
                f"{subject}: snapshot.throttle, {name}",
                partial(ask, connection),
                lambda why: f"a copy would wait now: {why}" if why else "within its limit",
            )


def _said(facts: source_server.ServerFacts, source: Source) -> dict[str, str]:
    """The text for each rule that is met, by its name."""
    return {
        "binary log": "on",
        "grants": "sufficient",
        "binlog_format": facts.binlog_format,
        "row image": facts.row_image,
        "log filters": "none",
        "replicated changes": "logged, if the server replicates any",
        "server_id": f"{source.server_id} is free",
        "row metadata": facts.row_metadata,
        "retention": f"{facts.retention_s / 86_400:.1f} days" if facts.retention_s else "for ever",
        "checksum": facts.checksum,
    }


def check_tables(
    pipeline: Pipeline,
    source: Source,
    connection: pymysql.Connection[Any],
    findings: Findings,
    covered: Mapping[str, TableCoverage] | None = None,
) -> CheckedTables:
    """covered: of a source extracted before."""
    subject = f"source {source.name}: tables"
    capture = Capture(pipeline.tables, pipeline.routes, lower_case=lower_case_names(connection))
    listed = findings.attempt(subject, lambda: find_tables(connection, capture.captures))
    if listed is None:
        return CheckedTables({}, None)
    tables = [table for table in listed if table.kind == "table"]
    names = cache(partial(table_names, connection))
    _check_patterns(capture, names, [table.name for table in listed], subject, findings)
    if tables:
        findings.ok(subject, f"{counted(len(tables), 'table')} captured")
        _check_cascades(pipeline, source, connection, capture, findings)
    for table in tables:
        if advice := engine_advice(table.engine):
            findings.warn(
                subject, f"{table.name} {advice}", "exclude the table (tables.exclude), or expect a difference"
            )
        if table.schema is None:
            findings.warn(
                subject, f"{table.name}: {table.problem}", "the first change of it stops the pipeline: tables.exclude"
            )
        elif not table.schema.key and not _taken_all_the_same(pipeline, capture, table.schema):
            findings.warn(
                subject,
                f"{table.name} has no key: its changes are staged, but a target applies them only if configured for it",
                "add a primary key, or name the key columns at the target (targets.*.tables.*.key), or let a target "
                "other than a lake count equal rows (no_key: rows)",
            )
        for column in table.schema.columns if table.schema is not None else ():
            if column.type.base == "set" and "" in column.type.labels:
                what = "rows whose keys" if column.key_part is not None else "values that"
                findings.warn(
                    subject,
                    f"{table.name}.{column.name} is a SET with the label '', which texts do not show where it comes "
                    f"first: {what} differ in it alone are one and the same at a target",
                    "give the label a text, or expect a difference",
                )
    lacking = _warn_of_rows(pipeline, source, connection, tables, covered, findings)
    looked_up = pipeline.reverse_query is not None
    if looked_up:
        findings.attempt(
            f"source {source.name}: reverse query", partial(_warn_of_unreadable, source, connection, tables, findings)
        )
    if pipeline.copies_again or looked_up or pipeline.snapshot.mode == "initial":
        copied = tables if pipeline.copies_again or looked_up else lacking
        findings.attempt(
            f"source {source.name}: locks for copies", partial(_warn_of_locks, source, connection, copied, findings)
        )
    schemas = [table.schema for table in tables if table.schema is not None]
    tried = [findings.attempt(f"{subject}: {schema.name}", partial(capture.shape, schema)) for schema in schemas]
    shaped = [schema for schema in tried if schema is not None]
    logical: dict[str, list[TableSchema]] = defaultdict(list)
    for schema in shaped:
        for name in capture.route(schema.database, schema.table):
            logical[name].append(schema)
    objects = partial(table_names, connection, every=True)
    seen = findings.attempt(subject, lambda: _seen(capture, objects, tables, shaped))
    return CheckedTables(logical, seen)


def _seen(
    capture: Capture, names: Callable[[], Sequence[str]], tables: Sequence[FoundTable], shaped: Sequence[TableSchema]
) -> Seen:
    """names: of all tables, views and sequences that the account may see."""
    read = [table.schema for table in tables if table.schema is not None]
    unread = {table.name: capture.route(table.database, table.table) for table in tables if table.schema is None}
    columns = {f"{schema.name}.{column.name}" for schema in (*read, *shaped) for column in schema.columns}
    every = names() if capture.tables.exclude else ()
    return Seen(
        frozenset(every), frozenset(table.name for table in tables), frozenset(columns), capture.lower_case, unread
    )


def _warn_of_rows(
    pipeline: Pipeline,
    source: Source,
    connection: pymysql.Connection[Any],
    tables: Sequence[FoundTable],
    covered: Mapping[str, TableCoverage] | None,
    findings: Findings,
) -> list[FoundTable]:
    """Rows from before the pipeline captures their table: they are not in any log. The tables that have some."""
    lines, lacking, before = [], [], []
    for table in tables:
        known = None if covered is None else covered.get(table.name)
        if known is not None and not known.whole:
            lines.append(lacks(table.name, source.name, known))
            lacking.append(table)
        elif covered is None and table.schema is not None and not proven_empty(connection, table.database, table.table):
            before.append(table)
    lacking += before
    if before:
        lines.append(rows_before(before))
    if lines:
        more = f"; and {len(lines) - MOST_TABLES:,} more tables" if len(lines) > MOST_TABLES else ""
        copies = "`lockstep snapshot` copies these tables"
        if pipeline.targets:
            copies += (
                ", and so does `lockstep run` with snapshot.mode: initial and with tables.on_unlogged_change and "
                "on_unreadable: resync"
            )
        findings.warn(
            f"source {source.name}: {EXISTING_ROWS}",
            f"{'; '.join(lines[:MOST_TABLES])}{more}",
            f"{copies}; until then the staged files do not give their states (docs/tutorial.md, step 3)",
        )
    return lacking


def _warn_of_unreadable(
    source: Source, connection: pymysql.Connection[Any], tables: Sequence[FoundTable], findings: Findings
) -> None:
    """Tables of which the account may not read every column, so that runs cannot look their changes up."""
    names = [table.name for table in tables if not _may_read(connection, table)]
    if names:
        findings.warn(
            f"source {source.name}: reverse query",
            f"the account may not read all columns of {some_of(names, MOST_TABLES, 'tables')}, so that runs apply old "
            "changes as they were logged",
            "on the source: GRANT SELECT on these tables to the account, or leave out reverse_query",
        )


def _may_read(connection: pymysql.Connection[Any], table: FoundTable) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {quote(table.database, table.table)} LIMIT 0")
    except pymysql.err.MySQLError as error:
        if kind_of(error) is ErrorKind.DENIED:
            return False
        raise
    return True


def _warn_of_locks(
    source: Source, connection: pymysql.Connection[Any], copied: Sequence[FoundTable], findings: Findings
) -> None:
    """Tables that runs would copy under a lock for which the account lacks the privilege."""
    facts = source_server.facts(connection)
    locked = [
        table
        for table in copied
        if table.schema is not None and locked_for_copies(facts, table.engine, keyed=bool(table.schema.key))
    ]
    denied = [name for name in sorted({table.database for table in locked}) if not may_lock(connection, name)]
    names = [table.name for table in locked if table.database in denied]
    if names:
        grants = "; ".join(f"GRANT LOCK TABLES ON {quote(name)}.* TO the account" for name in denied[:MOST_TABLES])
        findings.warn(
            f"source {source.name}: locks for copies",
            f"a copy of {some_of(names, MOST_TABLES, 'tables')} locks the table for a moment, and the account may not",
            f"on the source: {grants}",
        )


def _check_patterns(
    capture: Capture, every: Callable[[], Sequence[str]], matched: list[str], subject: str, findings: Findings
) -> None:
    """Patterns of tables.include that match nothing; if no pattern matches and a similar table exists, it fails."""
    idle = [
        pattern for pattern in capture.tables.include if not any(capture.matches(pattern, name) for name in matched)
    ]
    if not idle:
        return
    names = findings.attempt(subject, every) or []
    # Tables that tables.exclude leaves out are matched anyway.
    idle = [pattern for pattern in idle if not any(capture.matches(pattern, name) for name in names)]
    near = {pattern: question(did_you_mean(pattern, names)) for pattern in idle}
    for pattern, asked in near.items():
        what = f"no table matches '{pattern}' of tables.include"
        if asked and not matched:
            findings.fail(
                subject,
                Refused(f"{what}. {asked}", where=subject, code="config.no_match", remedy="correct the pattern"),
            )
        else:
            findings.warn(subject, what, asked or "tables that appear later and match will be captured")


def _taken_all_the_same(pipeline: Pipeline, capture: Capture, schema: TableSchema) -> bool:
    """Whether every target of a table without a key is configured for it; without a target it is only staged."""
    rules = [
        rule
        for target in pipeline.targets
        for logical in capture.route(schema.database, schema.table)
        if (rule := target.table(logical)) is not None
    ]
    return all(rule.key or (isinstance(rule, MysqlTable) and rule.no_key == "rows") for rule in rules)


def _check_cascades(
    pipeline: Pipeline, source: Source, connection: pymysql.Connection[Any], capture: Capture, findings: Findings
) -> None:
    subject, policy = f"source {source.name}: foreign keys", CapturePolicy.from_config(pipeline.tables)
    let_pass = findings.attempt(
        subject,
        lambda: require_seen_cascades(connection, capture.captures, source=source.name, policy=policy),
        lambda found: (
            "no cascade changes captured rows without logging them" if not found else f"{len(found)} accepted"
        ),
    )
    heals = pipeline.tables.on_unlogged_change == "resync"
    for unlogged in let_pass or ():
        findings.warn(
            subject,
            unlogged,
            "each run after such a change copies the table again: where that is too much, replace the cascade with "
            "statements of the application"
            if heals
            else "target and source will differ there until a re-sync",
        )
