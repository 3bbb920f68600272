"""GTID sets in the servers' own text forms: what a checkpoint remembers, and whether one set contains another.

MySQL: `uuid:1-5:7,uuid:tag:1-3`, a set of intervals. MariaDB: `0-1-5,1-1-7`, the last transaction of each domain,
which implies all before it in that domain. The last one is the one that was logged last: without gtid_strict_mode, its
number may be lower than an earlier one's. The state of a MariaDB log (gtid_binlog_state, the head of a file) lists the
last transaction of each domain and server, in a domain the last of all last (sql/rpl_gtid.cc, get_gtid_list).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdc_core.errors import UsageError
from cdc_core.model.block import EntryGtids

_MARIADB = re.compile(r"^\d+-\d+-\d+$")
_TAG = re.compile(r"^[a-z_][a-z0-9_]{0,31}$")
_UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")

Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GtidSet:
    """intervals: MySQL, by `uuid` or `uuid:tag`, inclusive, in order. domains: MariaDB, domain -> (server, number)."""

    intervals: tuple[tuple[str, Intervals], ...] = ()
    domains: tuple[tuple[int, tuple[int, int]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """For a MariaDB domain the last that is listed. Raises UsageError (usage.argument)."""
        spans: dict[str, list[tuple[int, int]]] = {}
        domains: dict[int, tuple[int, int]] = {}
        for part in "".join(text.split()).lower().split(","):
            if not part:
                continue
            if _MARIADB.match(part):
                domain, server, number = (int(piece) for piece in part.split("-"))
                domains[domain] = (server, number)
                continue
            sid, *rest = part.split(":")
            if not _UUID.match(sid) or not rest:
                raise _unreadable(text)
            name = sid
            for piece in rest:
                if _TAG.match(piece):
                    name = f"{sid}:{piece}"
                    continue
                low, _, high = piece.partition("-")
                if not low.isdigit() or not (high or low).isdigit():
                    raise _unreadable(text)
                spans.setdefault(name, []).append((int(low), int(high or low)))
        if spans and domains:
            raise _unreadable(text)
        return cls(
            tuple((name, _merged(parts)) for name, parts in sorted(spans.items())), tuple(sorted(domains.items()))
        )

    @classmethod
    def highest(cls, state: str) -> GtidSet:
        """As `parse`, for a MariaDB domain with the largest number: a set that contains it contains the whole state."""
        return cls.parse(",".join(sorted(state.split(","), key=_mariadb_number)))

    def __str__(self) -> str:
        if self.domains:
            return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in self.domains)
        parts: list[str] = []
        last = ""
        for name, spans in self.intervals:
            sid, _, tag = name.partition(":")
            text = ":".join([*([tag] if tag else []), *(str(a) if a == b else f"{a}-{b}" for a, b in spans)])
            if sid == last:
                parts[-1] += ":" + text
            else:
                parts.append(f"{sid}:{text}")
            last = sid
        return ",".join(parts)

    def union(self, other: GtidSet) -> GtidSet:
        """Both sets; for a MariaDB domain the transaction of `other`, which is the later one."""
        spans = {name: list(parts) for name, parts in self.intervals}
        for name, parts in other.intervals:
            spans.setdefault(name, []).extend(parts)
        domains = {**dict(self.domains), **dict(other.domains)}
        return GtidSet(
            tuple((name, _merged(parts)) for name, parts in sorted(spans.items())), tuple(sorted(domains.items()))
        )

    def contains(self, other: GtidSet) -> bool:
        """Whether every transaction of `other` is in this set."""
        mine = dict(self.intervals)
        for name, parts in other.intervals:
            have = mine.get(name, ())
            if not all(any(a <= low and high <= b for a, b in have) for low, high in parts):
                return False
        domains = self._last
        return all(domain in domains and domains[domain] >= number for domain, (_, number) in other.domains)

    def minus(self, other: GtidSet) -> GtidSet:
        """What `other` lacks; for a MariaDB domain the last transaction, if `other` has not reached it."""
        spans = []
        for name, parts in self.intervals:
            left = list(parts)
            for low, high in dict(other.intervals).get(name, ()):
                left = [
                    piece
                    for a, b in left
                    for piece in ((a, min(b, low - 1)), (max(a, high + 1), b))
                    if piece[0] <= piece[1]
                ]
            if left:
                spans.append((name, _merged(left)))
        domains = tuple(domain for domain in self.domains if other._last.get(domain[0], -1) < domain[1][1])
        return GtidSet(tuple(spans), domains)

    def __bool__(self) -> bool:
        return bool(self.intervals or self.domains)

    def has(self, gtid: str) -> bool:
        """Whether one transaction is in this set."""
        return self.contains(GtidSet.parse(gtid))

    @cached_property
    def _last(self) -> dict[int, int]:
        return {domain: number for domain, (_, number) in self.domains}


def _mariadb_number(gtid: str) -> int:
    return int(gtid.rpartition("-")[2]) if _MARIADB.match(gtid) else 0


def _merged(parts: Iterable[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a GTID set.",
        code="usage.argument",
        remedy="write it as the server prints it: uuid:1-5 on MySQL, 0-1-5 on MariaDB",
    )


def set_of(gtids: EntryGtids) -> GtidSet:
    """The set of these GTIDs, which are in the order of the log."""
    parts: list[tuple[int, GtidSet]] = []
    for name, prefix in enumerate(gtids.prefixes):
        entries = np.flatnonzero(gtids.name == name)
        if not len(entries):
            continue
        last = int(entries[-1])
        if prefix.endswith("-"):
            domain, server, _ = prefix.split("-")
            part = GtidSet(domains=((int(domain), (int(server), int(gtids.number[last]))),))
        else:
            numbers = np.unique(gtids.number[entries])
            runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
            part = GtidSet(((prefix.removesuffix(":"), tuple((int(run[0]), int(run[-1])) for run in runs)),))
        parts.append((last, part))
    gtid_set = GtidSet()
    for _, part in sorted(parts, key=lambda each: each[0]):
        gtid_set = gtid_set.union(part)
    return gtid_set


def advanced(executed: str, added: GtidSet) -> str:
    """The set `executed` with more transactions: the GTIDs of a checkpoint after them.

    For MySQL "" stays "" unless they begin with a server's first transaction: a set without the earlier transactions is
    useless. A MariaDB position needs only the last ones.
    """
    if not added or (not executed and any(parts[0][0] != 1 for _, parts in added.intervals)):
        return executed
    return str(GtidSet.parse(executed).union(added))
