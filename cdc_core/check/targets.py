"""Preflight of a target: its servers, and for each logical table every shard of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pymysql

from cdc_core.apply.plan import key_of
from cdc_core.check.findings import Findings, connected
from cdc_core.check.loops import require_no_loop
from cdc_core.config import Pipeline, Target
from cdc_core.connections import answers
from cdc_core.model.schema import TableSchema
from cdc_core.target.destination import open_destination
from cdc_core.target.facts import require_server


@answers("target")
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
    servers: list[str | None] = []
    with ExitStack() as opened:
        for number, reference in enumerate(target.connections):
            place = subject if len(target.connections) == 1 else f"{subject}, server {number}"
            connection = opened.enter_context(connected(findings, place, reference, environ))
            servers.append(identity(connection) if connection is not None else None)
            if connection is not None:
                _bulk_load(connection, place, findings)
    if None in servers:
        return  # said above: no table can be looked at before its server answers
    for name, schemas in logical.items():
        if target.table(name) is not None:
            looped = {number for number, server in enumerate(servers) if server in sources}
            _logical_table(pipeline, target, name, schemas, looped, environ, findings)


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
    looped: set[int],
    environ: Mapping[str, str] | None,
    findings: Findings,
) -> None:
    """`looped`: numbers of the target's connections that lead to a server we read."""

    def look() -> int:
        key = key_of(target, name, schemas)
        destination = open_destination(target, name, schemas, key=key, ready=False, environ=environ)
        for shard in destination.shards:
            if shard.place.connection in looped:
                require_no_loop(pipeline, shard.place)
        return len(destination.shards)

    findings.attempt(
        f"target {target.name}: {name}", look, lambda count: f"{count} table(s) with the columns and key of the source"
    )
