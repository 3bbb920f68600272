"""Finds beforehand what would go wrong during a switch or after it: findings like those of `lockstep check`.

the new tables             differences that an application notices (noticed.py)
views, routines, sequences that the old databases have, and the new ones lack
ids                        counters of AUTO_INCREMENT: the new tables must not give out ids that the old ones gave
the way back               the same checks as of any pipeline, of the one that would be written
locks and gates            privileges, and what they would wait for (blockers.py)
events                     that the old servers run on a schedule
foreign keys               between a table that is switched and one that is not
triggers                   that fire for Lockstep's own writes as well
settings                   of the servers, by which the same statement writes another row
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pymysql

from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError, Refused, TargetFenced
from cdc_core.model.readable import counted, some_of
from cdc_core.mysql.connections import is_mariadb, quote, resolve, shown
from cdc_core.mysql.server_errors import NO_TABLE, ErrorKind, kind_of, number_of
from cdc_core.mysql.session_settings import OWN_WRITES
from cdc_core.operations.check import check
from cdc_core.operations.check.check_sources import EXISTING_ROWS
from cdc_core.operations.check.findings import CheckFinding, Findings
from cdc_core.operations.cutover.blockers import find_blockers
from cdc_core.operations.cutover.noticed import Noticed, noticed, of_people
from cdc_core.operations.target_tables import literals_of
from cdc_core.source.host.server_facts import replica_channels, written_beside
from cdc_core.source.host.table_survey import NO_SUCH_TABLE, may_lock
from cdc_core.source.schemas.foreign_keys import foreign_keys
from cdc_core.targets.bookkeeping.gates import BINLOG_PRIVILEGE, Places, require_not_left
from cdc_core.targets.tables.auto_increment import Place, meeting_counters
from cdc_core.targets.tables.table_definition import LITERAL, read_definitions
from cdc_core.targets.tables.table_differences import Existing
from cdc_core.targets.writing.load import altering_session

HEADROOM = 10_000
"""Counters of the new tables are ahead of the old ones by so much when a cutover begins."""
_SHARE = 8
"""The headroom is at most this part of the ids that a column has left: a TINYINT has few."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TablePair:
    """The tables of one logical table that an application leaves, and those that it comes to."""

    logical: str
    old: tuple[Place, ...]
    new: tuple[Place, ...]


def places_of(listed: Iterable[Place]) -> Places:
    """The places by server."""
    places: dict[str, list[tuple[str, str]]] = {}
    for reference, database, table in listed:
        places.setdefault(reference, []).append((database, table))
    return places


def look(pairs: Sequence[TablePair]) -> tuple[CheckFinding, ...]:
    """What speaks against an application's move from the old tables to the new ones."""
    findings, before = Findings(), dict[str, _Settings]()
    left: dict[tuple[str, str], str] = {}
    for reference, tables in places_of(place for pair in pairs for place in pair.old).items():
        with altering_session(resolve(reference), reference) as session:
            _primary(session, reference, findings)
            _locks(session, reference, tables, findings)
            _gates(session, reference, tables, findings)
            findings.attempt(reference, partial(require_not_left, {reference: tables}))
            find_blockers(session, reference, findings)
            _events(session, reference, tables, findings)
            _foreign_keys(session, reference, tables, findings)
            _triggers(session, reference, tables, "the old tables", findings)
            before[reference] = _settings(session)
            left |= _beside(session, tables)
    for reference, tables in places_of(place for pair in pairs for place in pair.new).items():
        with altering_session(resolve(reference), reference) as session:
            _triggers(session, reference, tables, "the new tables", findings)
            _may_come_back(session, reference, tables, findings)
            _other_settings(before, reference, _settings(session), findings)
            for name in _beside(session, tables):
                left.pop(name, None)
    if left:
        findings.warn(
            "the old databases",
            f"the new ones lack some of their objects: {some_of(sorted(left.values()), _SHOWN)}",
            "create those that the application uses: a view that stays behind shows the old tables; a new sequence "
            "must begin above the numbers that the old one has given out",
        )
    for pair in pairs:
        findings.attempt(f"table {pair.logical}", lambda pair=pair: _compare(pair, findings))  # type: ignore[misc]
        meeting = meeting_counters(pair.new) if len(pair.new) > 1 else ()
        if meeting:
            findings.warn(
                f"table {pair.logical}",
                f"AUTO_INCREMENT of {counted(len(meeting), 'new table')} gives out ids that another one gives out too: "
                f"{', '.join(meeting[:3])}{', ...' if len(meeting) > 3 else ''}",
                "let the application make its ids, or set auto_increment_increment and auto_increment_offset so that "
                "the shards have ids of their own",
            )
    return tuple(findings.made)


def look_back(way_back: Pipeline) -> tuple[CheckFinding, ...]:
    """What speaks against the way back, as it is or would be written."""
    return tuple(
        replace(finding, subject=f"way back: {finding.subject}")
        for finding in check(way_back).findings
        if finding.status != "ok"
        and not finding.subject.endswith(EXISTING_ROWS)  # the old tables have them
        and not isinstance(finding.error, TargetFenced)  # the switch lets it in
    )


def _primary(session: Any, reference: str, findings: Findings) -> None:
    """Locks stop the writes of the server that takes them."""
    cluster = written_beside(session)
    if cluster:
        findings.warn(
            reference,
            f"the server is in {cluster}: locks here do not stop writes at its other servers. What is written there "
            "after the final position is found afterwards, and nothing is switched then",
            "let the application write to this server alone before the cutover begins, or stop it by cutover.stop_with",
        )
    try:
        channels = replica_channels(session, mariadb=is_mariadb(session))
    except pymysql.err.OperationalError as error:
        if kind_of(error) is not ErrorKind.DENIED:
            raise
        findings.warn(
            reference,
            "the account may not know whether the server is a replica (REPLICATION CLIENT; on MariaDB REPLICA MONITOR)",
            "grant it, or make sure that the application writes to this server: on another one, no lock stops it",
        )
        return
    if channels:
        findings.fail(
            reference,
            Refused(
                "The server replicates another one, where the application may write and no lock stops it.",
                where=reference,
                code="cutover.replica",
                remedy="let the pipeline read the primary; or, if this is the primary now, end its replication "
                "(RESET REPLICA ALL)",
            ),
        )


def _may_come_back(session: Any, reference: str, tables: Sequence[tuple[str, str]], findings: Findings) -> None:
    """A cutover back locks and gates the new tables. What it lacks can be granted until then."""
    lacking = Findings()
    _locks(session, reference, tables, lacking)
    _gates(session, reference, tables, lacking)
    for finding in lacking.made:
        findings.warn(f"cutover back: {reference}", finding.what, finding.remedy)


def _locks(session: Any, reference: str, tables: Any, findings: Findings) -> None:
    for database in sorted({database for database, _ in tables}):
        if not may_lock(session, database):
            findings.fail(
                reference,
                Refused(
                    f"The account may not lock the tables of {database}.",
                    where=reference,
                    code="connection.grant",
                    remedy=f"GRANT LOCK TABLES ON {quote(database)}.* TO the account",
                ),
            )


def _gates(session: Any, reference: str, tables: Sequence[tuple[str, str]], findings: Findings) -> None:
    """Servers look for the privileges before they look for the table: nothing is made."""
    for database in sorted({database for database, _ in tables}):
        probe = f"{quote(database, '_lockstep_probe')} BEFORE INSERT ON {quote(database, NO_SUCH_TABLE)}"
        try:
            with session.cursor() as cursor:
                cursor.execute(f"CREATE TRIGGER {probe} FOR EACH ROW SET @_lockstep_probe = NULL")
        except pymysql.err.MySQLError as error:
            if number_of(error) in NO_TABLE:
                continue
            if kind_of(error) is not ErrorKind.DENIED and number_of(error) != BINLOG_PRIVILEGE:
                raise
            findings.fail(
                reference,
                Refused(
                    "The account may not create triggers, which refuse writes to the tables that are left: "
                    f"{shown(error)}",
                    where=f"{reference}, {database}",
                    code="connection.grant",
                    remedy=f"GRANT TRIGGER ON {quote(database)}.* TO the account; where the server writes a binary "
                    "log, SET GLOBAL log_bin_trust_function_creators = ON as well, or grant SUPER",
                ),
            )


def _events(session: Any, reference: str, tables: Sequence[tuple[str, str]], findings: Findings) -> None:
    events = []
    for database in sorted({database for database, _ in tables}):
        try:
            with session.cursor() as cursor:
                cursor.execute(
                    f"SHOW EVENTS IN {quote(database)}"
                )  # INFORMATION_SCHEMA would be empty without the grant
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except pymysql.err.MySQLError as error:
            if kind_of(error) is not ErrorKind.DENIED:
                raise
            findings.warn(
                reference,
                f"the account may not see the scheduled events of {database} (EVENT): none is listed here",
                f"GRANT EVENT ON {quote(database)}.* TO the account; or look yourself (SHOW EVENTS)",
            )
            continue
        events += [f"{row['Db']}.{row['Name']}" for row in rows if row["Status"] == "ENABLED"]
    if events:
        findings.warn(
            reference,
            f"the server runs {counted(len(events), 'scheduled event')}: {', '.join(events)}",
            "they run there after the switch as well, and get an error where they write to the old tables: make those "
            "that are needed on the new servers, and disable them here",
        )


def _foreign_keys(session: Any, reference: str, tables: Sequence[tuple[str, str]], findings: Findings) -> None:
    switched = set(tables)
    for key in foreign_keys(session):
        apart = [place for place in (key.child, key.parent) if place not in switched]
        if len(apart) != 1:
            continue
        child, left = ".".join(key.child), ".".join(apart[0])
        tie = f"the foreign key {key.name} leads from {child} to {'.'.join(key.parent)}"
        if not key.changes_rows:
            findings.warn(
                reference,
                f"{tie}, and {left} is not switched",
                f"after the switch nothing checks it between the two: let the pipeline carry {left}, or make sure that "
                "the application does without",
            )
            continue
        findings.fail(
            reference,
            Refused(
                f"{tie[0].upper()}{tie[1:]}, and {left} is not switched. The server changes rows of one with the "
                "other (ON DELETE, ON UPDATE) without firing a trigger, so no gate sees it.",
                where=child,
                code="cutover.tied",
                remedy=f"let the pipeline carry {left} as well, or drop the foreign key",
            ),
        )


def _triggers(session: Any, reference: str, tables: Sequence[tuple[str, str]], whose: str, findings: Findings) -> None:
    """What the application's triggers write, Lockstep carries: one that fires for its writes does it twice."""
    databases, wanted = sorted({database for database, _ in tables}), set(tables)
    with session.cursor() as cursor:
        cursor.execute(
            "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_NAME, ACTION_STATEMENT "
            f"FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA IN ({', '.join(['%s'] * len(databases))})",
            databases,
        )
        found = sorted(
            f"{database}.{name}"
            for database, table, name, body in cursor.fetchall()
            if (str(database), str(table)) in wanted and OWN_WRITES not in str(body).lower() and of_people((str(name),))
        )
    if found:
        findings.warn(
            reference,
            f"triggers of {whose} fire for what Lockstep writes there, too: "
            f"{', '.join(found[:3])}{', ...' if len(found) > 3 else ''}",
            "what they change is then done twice, and the two sides differ: let each do nothing in Lockstep's "
            f"sessions (BEGIN IF {OWN_WRITES} IS NULL THEN ... END IF; END), or drop it for as long as Lockstep writes "
            "there",
        )


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a server. modes: of its sql_mode. noons: what its clocks show at noon UTC, in winter and
    summer."""

    modes: frozenset[str]
    noons: tuple[str, ...]


_HARMLESS_MODES = frozenset({"", "NO_AUTO_CREATE_USER", "NO_ENGINE_SUBSTITUTION"})
_NOONS = ("2026-01-15 12:00", "2026-07-15 12:00")


def _settings(session: Any) -> _Settings:
    with session.cursor() as cursor:
        noons = ", ".join(f"CAST(CONVERT_TZ('{noon}', '+00:00', @@GLOBAL.time_zone) AS CHAR)" for noon in _NOONS)
        cursor.execute(f"SELECT @@GLOBAL.sql_mode, {noons}")
        modes, *shown_there = cursor.fetchone()
    return _Settings(frozenset(str(modes).upper().split(",")) - _HARMLESS_MODES, tuple(map(str, shown_there)))


def _other_settings(before: Mapping[str, _Settings], reference: str, there: _Settings, findings: Findings) -> None:
    for former, here in before.items():
        settings = []
        if here.modes != there.modes:
            modes = [
                *(f"+{mode}" for mode in sorted(there.modes - here.modes)),
                *(f"-{mode}" for mode in sorted(here.modes - there.modes)),
            ]
            settings.append(f"sql_mode ({', '.join(modes)})")
        if here.noons != there.noons:
            settings.append("time_zone")
        if settings:
            findings.warn(
                reference,
                f"the server has another {' and another '.join(settings)} than {former}",
                "an application whose sessions do not set these themselves gets errors there, or writes other rows by "
                "the same statements: set them alike (SET GLOBAL, and the server's configuration)",
            )


def _compare(pair: TablePair, findings: Findings) -> None:
    old = next(iter(_definitions(pair.old[:1])), None)
    if old is None:
        return
    found: dict[Noticed, list[str]] = {}
    for new in _definitions(pair.new):
        for difference in noticed(old, new):
            found.setdefault(difference, []).append(new.definition.name)
    subject = f"table {pair.logical}"
    for difference, names in found.items():
        what = f"{some_of(names, 1)}: {difference.what}"
        if difference.stops:
            stopped = Refused(f"{what}.", where=subject, code="target.definition", remedy=difference.remedy)
            findings.fail(subject, stopped)
        else:
            findings.warn(subject, what, difference.remedy)


def _definitions(listed: Iterable[Place]) -> Iterator[Existing]:
    for reference, tables in places_of(listed).items():
        with altering_session(resolve(reference), reference) as session:
            for database in sorted({database for database, _ in tables}):
                names = [table for at, table in tables if at == database]
                for definition in read_definitions(session, database, names).values():
                    literal = any(column.default == LITERAL for column in definition.columns)
                    yield Existing(definition, literals_of(session, definition) if literal else {})


def _beside(session: Any, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What else the databases have that an application uses, as far as the account may see it: by kind and name."""
    databases = sorted({database for database, _ in tables})
    marks = ", ".join(["%s"] * len(databases))
    with session.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_TYPE, TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
            f"WHERE TABLE_TYPE IN ('VIEW', 'SEQUENCE') AND TABLE_SCHEMA IN ({marks}) UNION ALL "
            "SELECT ROUTINE_TYPE, ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES "
            f"WHERE ROUTINE_SCHEMA IN ({marks})",
            databases * 2,
        )
        return {
            (str(kind).lower(), str(name)): f"{str(kind).lower()} {database}.{name}"
            for kind, database, name in cursor.fetchall()
        }


def next_ids(places: Places) -> dict[tuple[str, str], int]:
    """The next id of each table that gives out ids (AUTO_INCREMENT)."""
    found: dict[tuple[str, str], int] = {}
    for reference, tables in places.items():
        databases = sorted({database for database, _ in tables})
        with altering_session(resolve(reference), reference) as session, session.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_SCHEMA, TABLE_NAME, AUTO_INCREMENT FROM information_schema.TABLES "
                f"WHERE AUTO_INCREMENT IS NOT NULL AND TABLE_SCHEMA IN ({', '.join(['%s'] * len(databases))})",
                databases,
            )
            wanted = set(tables)
            for database, table, number in cursor.fetchall():
                if (str(database), str(table)) in wanted:
                    found[str(database), str(table)] = int(number)
    return found


def raise_ids(pairs: Iterable[TablePair]) -> list[str]:
    """Raises the counters of the new tables above those of the old ones by their headroom, where half of it or more is
    used up; the tables that were raised. Raises what altering raises."""
    raised = []
    for reference, tables in _behind(pairs).items():
        with altering_session(resolve(reference), reference) as session, session.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 5")
            for table, counter in tables.items():
                headroom = max(0, min(HEADROOM, (_greatest_id(cursor, table) - counter.least) // _SHARE))
                if counter.next_id < counter.least + headroom // 2:
                    cursor.execute(f"ALTER TABLE {quote(*table)} AUTO_INCREMENT = {counter.least + headroom}")
                    raised.append(".".join(table))
    return raised


_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32}


def _greatest_id(cursor: Any, table: tuple[str, str]) -> int:
    """The greatest id that the column of an AUTO_INCREMENT takes."""
    cursor.execute(
        "SELECT COLUMN_TYPE FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND EXTRA LIKE '%%auto_increment%%'",
        table,
    )
    declared = str((cursor.fetchone() or ("",))[0]).lower()
    bits = _BITS.get(re.split("[( ]", declared)[0], 64)
    return int(2 ** (bits if "unsigned" in declared else bits - 1) - 1)


@dataclass(frozen=True, slots=True)
class _Counter:
    """The next id of a new table, and the least that it should be: that of the old ones."""

    next_id: int
    least: int


def _behind(pairs: Iterable[TablePair]) -> dict[str, dict[tuple[str, str], _Counter]]:
    """New tables whose next id is not half of the headroom ahead of the greatest of the old ones, by server."""
    listed = list(pairs)
    old = next_ids(places_of(place for pair in listed for place in pair.old))
    new = next_ids(places_of(place for pair in listed for place in pair.new)) if old else {}
    counters: dict[str, dict[tuple[str, str], _Counter]] = {}
    for pair in listed:
        least = max((old[place[1:]] for place in pair.old if place[1:] in old), default=0)
        for reference, *table in pair.new:
            name = (table[0], table[1])
            if name in new and least and new[name] < least + HEADROOM // 2:
                counters.setdefault(reference, {})[name] = _Counter(new[name], least)
    return counters


def failed(findings: Sequence[CheckFinding]) -> LockstepError | None:
    """The first error."""
    return next((finding.error for finding in findings if finding.error is not None), None)
