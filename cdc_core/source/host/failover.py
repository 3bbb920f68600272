"""Continuing in another log: at the position after everything that was read from the previous server.

By GTIDs where the checkpoint has them: exact, unless this server has logged transactions in another order. Otherwise by
time: from `rewind_s` before the last transaction read. Transactions that come again have a newer order key, which
changes nothing where rows have a key. It must keep true that no change is left out: a server that lacks what was read,
or whose log begins too late, stops the source.
Then an operator can give up what was not read (`after_loss`), and every table is copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pymysql

from cdc_core.config import Source
from cdc_core.errors import GIVE_UP, DataAtRisk, LockstepError, RetryLater, ServerChanged
from cdc_core.model.position import Checkpoint, Position, above
from cdc_core.model.windows import CLOCK_TOLERANCE_US, MICROSECONDS, from_us
from cdc_core.mysql import connections
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.server_facts import (
    ServerFacts,
    applies_replicated,
    binlog_files,
    gtid_executed,
    gtid_purged,
    has_more_to_apply,
    log_off,
)
from cdc_core.source.host.server_facts import now_us as server_now_us
from cdc_core.source.host.start_position import Begin, Search, latest_us

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failover:
    """start: where to continue in the other server's log, under a new timeline. note: for the manifest.
    again_until: as in Manifest."""

    start: Checkpoint
    note: str
    again_until: int = 0


def is_other_server(stored: Checkpoint, facts: ServerFacts) -> bool:
    return bool(stored.server) and stored.server != facts.identity


def fail_over(
    source: Source, control: pymysql.Connection, server: connections.Server, facts: ServerFacts, stored: Checkpoint
) -> Failover:
    """Where to continue at the server that `control` is connected to.

    Raises DataAtRisk (source.log_lost; source.other_log where there are neither GTIDs nor several servers in the
    source), RetryLater (source.standby_behind), Refused (connection.setting).
    """
    files = binlog_files(control)
    if not files:
        raise log_off()
    search = Search(source, control, server, files, facts)
    wanted = GtidSet.parse(stored.gtid_set)
    if wanted.domains if facts.mariadb else wanted.intervals and facts.gtid_mode == "ON":
        checkpoint, how, last = _by_gtid(search, source, stored, wanted)
    elif len(source.connections) > 1:
        checkpoint, how, last = _by_time(search, source, stored)
    else:
        raise _other_server(source, stored, facts)
    again_until = replace(last, timeline=_next_timeline(source, stored)).seq + 1 if last is not None else 0
    start = _under_next_timeline(source, checkpoint, stored)
    note = (
        f"source {source.name} was read at server {stored.server} up to {stored.position} and continues at server "
        f"{facts.identity} from {start.position}, {how}"
    )
    log.warning(note)
    return Failover(start, note, again_until)


def after_loss(
    source: Source, control: pymysql.Connection, server: connections.Server, facts: ServerFacts, stored: Checkpoint
) -> Failover:
    """Continues at the current end of the log, and gives up all between the stored position and there.

    Raises Refused (connection.setting).
    """
    end = Search(source, control, server, binlog_files(control), facts).latest()
    start = _under_next_timeline(source, end, stored)
    note = (
        f"source {source.name} was read up to {stored.position}; what followed was given up, and reading continues "
        f"from {start.position}"
    )
    log.warning(note)
    return Failover(start, note)


def _under_next_timeline(source: Source, checkpoint: Checkpoint, stored: Checkpoint) -> Checkpoint:
    """What is complete, and in which window the next change belongs, is as it was at the stored position."""
    place = checkpoint.position
    return replace(
        checkpoint,
        position=Position(_next_timeline(source, stored), place.file, place.offset),
        watermark_us=stored.watermark_us,
        floor_us=stored.floor_us,
    )


def _next_timeline(source: Source, stored: Checkpoint) -> int:
    return max(above(stored.position.seq), source.timeline)


def _by_gtid(
    search: Search, source: Source, stored: Checkpoint, wanted: GtidSet
) -> tuple[Checkpoint, str, Position | None]:
    """Where to continue, a description of it, and the last transaction that comes again."""
    facts, control = search.known, search.control
    lacking = wanted.minus(GtidSet.parse(gtid_executed(control)))
    if lacking:
        raise _lacks(str(lacking), search, source, stored)
    purged = GtidSet.parse("" if facts.mariadb else gtid_purged(control)).minus(wanted)
    begin = next(
        (
            file.name
            for file in reversed(search.files)
            if wanted.contains(GtidSet.highest(search.head(file.name).previous))
        ),
        None,
    )
    if purged or begin is None:
        raise _purged(str(purged) or f"what comes after {wanted}", source, facts)
    ours = _require_same_history(search, begin, wanted, source, stored) if facts.mariadb else None
    found = search.first(begin, lambda transaction: not transaction.gtid or not wanted.has(transaction.gtid))
    end = found.position if ours is None else max(found.position, replace(ours, offset=ours.offset + 1))
    unordered = _unordered(search, begin, end) if facts.mariadb else {}
    if unordered:
        found = _before(search, unordered, source)
        again, last = _between(search, found.position, end)
    else:
        again, last = _logged_later(search, found, wanted)
    words = (
        f"by GTID: {again} transaction{'' if again == 1 else 's'} read before will come again, because this server has "
        "logged its transactions in another order"
    )
    if not facts.mariadb:
        found = replace(found, gtid_set=str(wanted.union(GtidSet.parse(found.gtid_set))))
    return found, "by GTID, without overlap" if last is None else words, last


def _unordered(search: Search, begin: str, end: Position) -> dict[int, int]:
    """MariaDB without gtid_strict_mode: by domain, the lowest number in the log from a file up to a place that an equal
    or higher one precedes. From there on, a number does not tell whether a transaction was read: a write at the standby
    has one that a transaction of its primary has, too."""
    highest = {domain: number for domain, (_, number) in GtidSet.highest(search.head(begin).previous).domains}
    found: dict[int, int] = {}
    for transaction in search.begins(begin):
        if transaction.position >= end:
            break
        domain, number = _numbered(transaction)
        if number <= highest.get(domain, -1):
            found[domain] = min(number, found.get(domain, number))
        highest[domain] = max(number, highest.get(domain, -1))
    return found


def _before(search: Search, unordered: Mapping[int, int], source: Source) -> Checkpoint:
    """Before the first transaction with one of these numbers of its domain, or a higher one."""

    def earlier(head: str) -> bool:
        reached = dict(GtidSet.highest(head).domains)
        return all(reached.get(domain, (0, -1))[1] < number for domain, number in unordered.items())

    begin = next((file.name for file in reversed(search.files) if earlier(search.head(file.name).previous)), None)
    if begin is None:
        numbers = ", ".join(f"{number} of domain {domain}" for domain, number in sorted(unordered.items()))
        raise _purged(f"all transactions from the number {numbers} on, which it has twice", source, search.known)

    def among(transaction: Begin) -> bool:
        domain, number = _numbered(transaction)
        return number >= unordered.get(domain, number + 1)

    return search.first(begin, among)


def _between(search: Search, begin: Position, end: Position) -> tuple[int, Position | None]:
    """How many transactions there are from a place up to another, and the last of them."""
    count, last = 0, None
    for transaction in search.begins(begin.file):
        if transaction.position >= end:
            break
        if transaction.position >= begin:
            count, last = count + 1, transaction.position
    return count, last


def _numbered(transaction: Begin) -> tuple[int, int]:
    """Domain and number of a transaction of MariaDB."""
    domain, _, number = transaction.gtid.split("-")
    return int(domain), int(number)


def _logged_later(search: Search, checkpoint: Checkpoint, wanted: GtidSet) -> tuple[int, Position | None]:
    """How many transactions of a set come after a place, and the last of them.

    A standby that applies transactions in parallel may log them in another order than its primary: MariaDB those of
    several domains, MySQL without replica_preserve_commit_order.
    """
    left, again, last = wanted.minus(GtidSet.parse(checkpoint.gtid_set)), 0, None
    for begin in search.begins(checkpoint.position.file) if left else ():
        if begin.position >= checkpoint.position and begin.gtid and wanted.has(begin.gtid):
            again, last = again + 1, begin.position
            left = left.minus(GtidSet.parse(begin.gtid))
            if not left:
                break
    return again, last


def _require_same_history(
    search: Search, begin: str, wanted: GtidSet, source: Source, stored: Checkpoint
) -> Position | None:
    """MariaDB numbers transactions by domain: an equal number may be another server's. Ours must be in the log.

    Returns where the last of ours begins; None where all are before the file `begin`.
    """
    ours = None
    last = {f"{domain}-{server}-{number}" for domain, (server, number) in wanted.domains}
    last -= set(search.head(begin).previous.split(","))
    for transaction in search.begins(begin):
        if not last:
            break
        if transaction.gtid in last:
            last.remove(transaction.gtid)
            ours = transaction.position
    if last:
        raise _lacks(",".join(sorted(last)), search, source, stored)
    return ours


def _by_time(search: Search, source: Source, stored: Checkpoint) -> tuple[Checkpoint, str, Position | None]:
    """Where to continue, a description of it, and the last transaction that may come again."""
    now_us = server_now_us(search.control)
    if not 0 < stored.watermark_us <= now_us + CLOCK_TOLERANCE_US:
        raise _no_time(source, stored, now_us)
    moment_us = stored.watermark_us - round(source.rewind_s * MICROSECONDS)
    file = search.file_at(moment_us)
    if file is None:
        raise search.begun_later(moment_us, f"{source.name}, failover from {stored.server}")
    more_to_apply = has_more_to_apply(search.control)
    found = search.first(file, lambda transaction: latest_us(transaction.commit_ts_us) >= moment_us)
    again, last = 0, None
    for begin in search.begins(found.position.file):
        # By the time of the first server: a standby commits later, and what was read is as old as it is there.
        if begin.original_ts_us > stored.watermark_us + round(source.rewind_s * MICROSECONDS):
            break
        if begin.position >= found.position:
            again, last = again + 1, begin.position
    else:
        if more_to_apply:  # of what was read, so that it would come again, and nothing would tell
            raise _may_be_behind(search, source, stored)
    words = (
        f"by time, from {from_us(moment_us).isoformat()} on ({source.rewind_s:g} s before what was read last): "
        f"{again} transaction{'' if again == 1 else 's'} of that time may come again"
    )
    return found, words, last


def _may_be_behind(search: Search, source: Source, stored: Checkpoint) -> RetryLater:
    return RetryLater(
        f"The standby {search.known.identity} may not have applied all that was read from {stored.server} yet; "
        "without GTIDs only its log and its replication can show that.",
        where=f"{source.name}, {stored.position}",
        code="source.standby_behind",
        remedy="nothing is lost; the next attempt continues there once the standby has applied all that it received. "
        "If it is the primary now, end its replication: STOP REPLICA, RESET REPLICA ALL",
    )


def _no_time(source: Source, stored: Checkpoint, now_us: int) -> DataAtRisk:
    reached = f"up to {from_us(stored.watermark_us).isoformat()}" if stored.watermark_us else "up to no known time"
    return DataAtRisk(
        "Without GTIDs Lockstep finds the position at another server by time, and a clock is wrong: the log was "
        f"read {reached}, and this server's clock says {from_us(now_us).isoformat()}.",
        where=f"{source.name}, {stored.position}",
        code="source.other_log",
        remedy="correct the clocks. If the previous server still answers, run once more against it, which records "
        f"the right time; otherwise {GIVE_UP}",
    )


def _lacks(what: str, search: Search, source: Source, stored: Checkpoint) -> LockstepError:
    where = f"{source.name}, {stored.position}"
    if applies_replicated(search.control):
        return RetryLater(
            f"The standby {search.known.identity} has not yet applied all that was read from {stored.server}: it lacks "
            f"{what}.",
            where=where,
            code="source.standby_behind",
            remedy="nothing is lost; once the standby has caught up, the next attempt continues there",
        )
    return DataAtRisk(
        f"The server {search.known.identity} lacks transactions that were read from {stored.server}: {what}.",
        where=where,
        code="source.other_log",
        remedy="they are staged, but this server never had them: apply the old server's transactions to it, or, if "
        f"it is right without them, {GIVE_UP}",
    )


def _purged(what: str, source: Source, facts: ServerFacts) -> DataAtRisk:
    return DataAtRisk(
        f"The log of {facts.identity} no longer holds {what}.",
        where=f"{source.name}, failover",
        code="source.log_lost",
        remedy=f"read a standby that still has this log, or {GIVE_UP}; keep the log longer "
        "(binlog_expire_logs_seconds)",
    )


def _other_server(source: Source, stored: Checkpoint, facts: ServerFacts) -> DataAtRisk:
    return ServerChanged(
        f"The position belongs to the log of server {stored.server}, but this is {facts.identity}, and without GTIDs "
        "Lockstep cannot find the same position here.",
        where=f"{source.name}, {stored.position}",
        remedy=f"point {source.connections[0]} at the server that was read before; or, if this is its standby, list "
        "both under `connection`, and reading continues by time",
    )
