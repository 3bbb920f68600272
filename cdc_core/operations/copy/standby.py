"""A replica that copies read in place of the source, which then has no work from them.

A claim of rows that a replica shows is as good as one of the source's, if two things are so. Everything before `low` is
visible: the replica has executed the GTIDs of what is staged. Nothing from `high` on is, `high` being the end of the
source's log after the read: what the replica has, the source logged before. It must keep true that the replica has all
that the source has, and nothing of its own: no filters, no errors skipped, no transactions that the source lacks. Rows
that were changed there without the log cannot be noticed here; a verification finds them.

A table that needs a view at one place of the log (no key), or whose engine has no views, is read at the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pymysql

from cdc_core.config import Source
from cdc_core.errors import DataAtRisk, Refused, TableUnready
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.mysql import connections
from cdc_core.mysql.connections import answers, shown
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.operations.copy.watermarks import VISIBLE_WITHIN_S, View, await_executed, await_prepared, engine_of, run
from cdc_core.source.host import source_server as server
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.server_facts import (
    ServerFacts,
    as_text,
    explained,
    gtid_executed,
    logged_gtids,
    query,
    replica_channels,
)
from cdc_core.source.host.table_survey import is_transactional
from cdc_core.source.schemas.captured_definitions import table_schema

_FILTERS = (
    "Replicate_Do_DB", "Replicate_Ignore_DB", "Replicate_Do_Table", "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table", "Replicate_Rewrite_DB",
    "Replicate_Do_Domain_Ids", "Replicate_Ignore_Domain_Ids", "Replicate_Ignore_Server_Ids",
)  # fmt: skip
"""Columns of a replica's status that name what it leaves out; each server has some of them."""
_LENIENT = {
    "replica_skip_errors": "OFF", "slave_skip_errors": "OFF",
    "replica_exec_mode": "STRICT", "slave_exec_mode": "STRICT",
}  # fmt: skip
"""Variables with which a replica continues where it differs from its source, and the value with which it does not."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A replica that meets the requirements."""

    address: connections.Server
    facts: ServerFacts


def find_standby(
    source: Source,
    control: pymysql.Connection,
    known: ServerFacts,
    environ: Mapping[str, str] | None,
    *,
    shows: str = "",
) -> Standby | None:
    """The replica that the pipeline names for copies; None where it names none, or it is the source itself by now.

    control, known: of the server whose log is staged. shows: GTIDs that the replica must have, which is waited for.

    Raises Refused (snapshot.standby), RetryLater (source.standby_behind, connection.*).
    """
    if source.copy_from is None:
        return None
    address = connections.resolve(source.copy_from, environ)
    session = connections.connect(
        address,
        where=f"{source.name}: {source.copy_from}",
        read_timeout=source.read_timeout_s,
        statement_timeout_s=None,
    )
    try:
        facts = server.facts(session)
        if facts.identity == known.identity:
            return None
        if facts.mariadb != known.mariadb:
            raise _unfit(source.name, "it is a server of another kind", "name a replica of the source")
        if not known.mariadb and "ON" not in (known.gtid_mode, facts.gtid_mode):
            raise _unfit(
                source.name, "without GTIDs nothing tells how far it is", "turn GTIDs on, or leave out copy_from"
            )
        _require_faithful(session, source.name, mariadb=facts.mariadb)
        require_nothing_else(session, control, source.name, mariadb=known.mariadb)
        await_staged(session, shows, "now", source.name, mariadb=known.mariadb)
        return Standby(replace(address, identity=facts.identity), facts)
    finally:
        session.close()


@contextmanager
def standby_view(
    reader: pymysql.Connection, control: pymysql.Connection, staged: Checkpoint, source: str, server: ServerFacts
) -> Iterator[View]:
    """A view for the statements of `reader`, after everything before the end of what is staged.

    reader, control: sessions at the replica. server: the source's, of which this is a replica. Raises RetryLater
    (source.standby_behind, connection.unreachable).
    """
    await_staged(control, staged.gtid_set, str(staged.position), source, mariadb=server.mariadb)
    if server.mariadb:
        await_prepared(control)
    run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        yield View(staged.position, exact=False, server=server)
    finally:
        if reader.open:
            run(reader, "ROLLBACK")


def readable_there(control: pymysql.Connection, schema: TableSchema, staged: Checkpoint) -> bool:
    """Whether a view of the table at the replica makes a claim. control: a session at the replica."""
    return bool(schema.key) and bool(staged.gtid_set) and is_transactional(engine_of(control, schema))


def require_same_definition(control: pymysql.Connection, schema: TableSchema, source: str) -> None:
    """That the source defines the table as the replica does. control: a session at the source.

    Raises RetryLater (source.standby_behind).
    """
    if table_schema(control, schema.database, schema.table) != schema:
        raise TableUnready(
            f"The replica of copy_from defines {schema.name} differently than the source.",
            where=source,
            code="source.standby_behind",
            remedy="the next attempt checks again, because the replica may only lag; if it lasts, make the "
            "definitions equal, or leave out copy_from",
        )


@answers("a replica of the source")
def require_nothing_else(
    session: pymysql.Connection, control: pymysql.Connection, source: str, *, mariadb: bool
) -> None:
    """That the replica has no transactions of its own. Raises DataAtRisk (snapshot.standby_diverged).

    session: at the replica, which is asked first: what it has by then, the source has.
    """
    if mariadb:
        sql = "SELECT @@GLOBAL.gtid_binlog_state"
        own = _beyond(*(as_text(query(one, sql)[0][0] or "") for one in (session, control)))
    else:
        there = gtid_executed(session)
        own = str(GtidSet.parse(there).minus(GtidSet.parse(logged_gtids(control, mariadb=False))))
    if own:
        raise DataAtRisk(
            f"The replica of copy_from has transactions that the source does not have: {own}.",
            where=source,
            code="snapshot.standby_diverged",
            remedy="name another replica, or leave out copy_from",
        )


def await_staged(session: pymysql.Connection, gtids: str, place: str, source: str, *, mariadb: bool) -> None:
    """Until the replica shows these transactions. Raises RetryLater (source.standby_behind)."""
    if gtids and not await_executed(session, gtids, mariadb=mariadb):
        raise TableUnready(
            f"The replica of copy_from did not execute within {VISIBLE_WITHIN_S:.0f} s what the source logged before "
            f"{place}.",
            where=source,
            code="source.standby_behind",
            remedy="the next attempt waits again; check that the replica replicates, and how far it lags",
        )


def _require_faithful(session: pymysql.Connection, source: str, *, mariadb: bool) -> None:
    """That it replicates everything, and stops at errors."""
    try:
        channels = replica_channels(session, mariadb=mariadb)
        with session.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name REGEXP '(skip_errors|exec_mode)$'")
            variables = {as_text(row["Variable_name"]).lower(): as_text(row["Value"]) for row in cursor.fetchall()}
    except pymysql.err.MySQLError as error:
        if kind_of(error) is ErrorKind.DENIED:
            grant = "REPLICA MONITOR" if mariadb else "REPLICATION CLIENT"
            raise _unfit(source, f"its account may not ask: {shown(error)}", f"give the account {grant}") from None
        raise explained(error, "SHOW REPLICA STATUS") from None
    if not channels:
        raise _unfit(source, "it is not a replica", "name a replica of the source, or leave out copy_from")
    filters = {f"{name}={as_text(row[name])}" for row in channels for name in _FILTERS if row.get(name)}
    if filters:
        raise _unfit(source, f"it leaves out changes: {', '.join(sorted(filters))}", "name a replica without filters")
    lenient = sorted(
        f"{name}={value}" for name, value in variables.items() if name in _LENIENT and value != _LENIENT[name]
    )
    if lenient:
        raise _unfit(
            source, f"it continues after errors: {', '.join(lenient)}", "name a replica that stops where it differs"
        )


def _unfit(source: str, why: str, remedy: str) -> Refused:
    return Refused(
        f"The replica of copy_from cannot be used for copies: {why}.",
        where=f"sources.{source}.copy_from",
        code="snapshot.standby",
        remedy=remedy,
    )


def _beyond(there: str, here: str) -> str:
    """MariaDB: what the replica has logged and the source has not, by domain and server."""
    known = _last_by_server(here)
    return ",".join(
        f"{domain}-{number}-{last}"
        for (domain, number), last in sorted(_last_by_server(there).items())
        if known.get((domain, number), 0) < last
    )


def _last_by_server(state: str) -> dict[tuple[int, int], int]:
    """gtid_binlog_state: the last transaction of each domain and server."""
    parts = (tuple(map(int, one.split("-"))) for one in "".join(state.split()).split(",") if one)
    return {(domain, number): last for domain, number, last in parts}
