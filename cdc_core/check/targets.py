"""Preflight of a target: its servers, and for each logical table every shard of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pymysql

from cdc_core.check.findings import Findings, connected
from cdc_core.config import Pipeline, Target
from cdc_core.errors import Refused, RetryLater
from cdc_core.model.schema import TableSchema
from cdc_core.sink import Capture
from cdc_core.target.facts import require_grants, require_server, require_table, table_facts
from cdc_core.target.sharding import ShardTable, shard_tables

Connections = list[pymysql.Connection[Any] | None]


def identity(connection: pymysql.Connection[Any]) -> str:
    """What tells one server from another, however it was reached."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@hostname, @@port, @@datadir")
        return "/".join(str(value) for value in cursor.fetchone() or ())


def check_target(
    pipeline: Pipeline,
    target: Target,
    logical: Mapping[str, list[TableSchema]],
    sources: set[str],
    environ: Mapping[str, str] | None,
    findings: Findings,
) -> None:
    """`logical`: the captured tables of each logical table; `sources`: identities of the servers we read."""
    subject = f"target {target.name}"
    with ExitStack() as opened:
        servers: Connections = []
        for number, reference in enumerate(target.connections):
            place = subject if len(target.connections) == 1 else f"{subject}, server {number}"
            connection = opened.enter_context(connected(findings, place, reference, environ))
            servers.append(connection)
            if connection is not None:
                _bulk_load(connection, place, findings)
        for name, schemas in logical.items():
            if target.table(name) is not None:
                _logical_table(pipeline, target, name, schemas, servers, sources, findings)


def _bulk_load(connection: pymysql.Connection[Any], place: str, findings: Findings) -> None:
    findings.attempt(
        f"{place}: bulk load",
        lambda: require_server(connection, where=place),
        lambda _: "LOAD DATA LOCAL INFILE is allowed",
    )


def _logical_table(
    pipeline: Pipeline,
    target: Target,
    name: str,
    schemas: list[TableSchema],
    servers: Connections,
    sources: set[str],
    findings: Findings,
) -> None:
    def look() -> int:
        shards = shard_tables(target, name)
        by_place: dict[tuple[int, str], list[ShardTable]] = {}
        for shard in shards:
            by_place.setdefault((shard.connection, shard.database), []).append(shard)
        for (number, _), found in by_place.items():
            connection = servers[number]
            if connection is None:
                raise RetryLater(
                    f"Server {number} could not be asked.",
                    where=target.connections[number],
                    code="check.not_asked",
                    remedy="mend its connection first, then check again",
                )
            if identity(connection) in sources:
                _require_no_loop(pipeline, found)
            _require_shards(target, name, schemas, found, connection)
        return len(shards)

    findings.attempt(
        f"target {target.name}: {name}", look, lambda count: f"{count} table(s) with the columns and key of the source"
    )


def _require_shards(
    target: Target, name: str, schemas: list[TableSchema], shards: list[ShardTable], connection: pymysql.Connection[Any]
) -> None:
    rule = target.tables.get(name) or target.tables["*"]
    database = shards[0].database
    known = table_facts(connection, database, [shard.table for shard in shards])
    for shard in shards:
        for schema in schemas:
            require_table(
                known.get(shard.table), schema, rule.key or schema.key, name=shard.name, freshness=rule.freshness
            )
    if rule.sharding is not None:
        for schema in schemas:
            require_shard_key(schema, rule.sharding.key, where=f"targets.{target.name}.tables.{name}.sharding.key")
    require_grants(connection, known.values(), temporary_in=database, where=f"{target.name}, {database}")


def require_shard_key(schema: TableSchema, key: str, *, where: str) -> None:
    """Raises Refused (check.shard_key) when the column that decides the shard is not one of the table."""
    if key not in {column.name for column in schema.columns}:
        raise Refused(
            f"The shard key {key!r} is not a column of {schema.name}.",
            where=where,
            code="check.shard_key",
            remedy=f"name one of: {', '.join(column.name for column in schema.columns)}",
        )


def _require_no_loop(pipeline: Pipeline, shards: list[ShardTable]) -> None:
    capture = Capture(pipeline.tables, pipeline.routes)
    for shard in shards:
        if capture.captures(shard.database, shard.table):
            raise Refused(
                f"{shard.name} is written by this pipeline and captured by it, on the same server: a loop.",
                where=shard.name,
                code="check.loop",
                remedy="exclude it (tables.exclude), or write to another database or server",
            )
