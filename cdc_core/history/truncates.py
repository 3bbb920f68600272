"""Which TRUNCATEs count, and whether they are allowed; and what they undo.

`t` is a TRUNCATE that the source logged, or the beginning of a copy that takes the place of older rows
(cdc_core/operations/copy/replacing.py), which is in a file of copied rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cdc_core.errors import Refused
from cdc_core.history.codes import Coded, Flags, Numbers
from cdc_core.model.version import Version, encode, origin_name


@dataclass(frozen=True, slots=True, order=True)
class Truncate:
    """The last one of its kind among the changes of a source table in the run. count: of all of them."""

    source: str
    source_table: str
    seq: int
    row: int
    commit_ts_us: int
    renews: bool
    """It is the beginning of a copy that takes the place of older rows."""
    count: int

    @property
    def table(self) -> tuple[str, str]:
        return self.source, self.source_table

    @property
    def order(self) -> tuple[int, int]:
        return self.seq, self.row


Counting = Callable[[Sequence[Truncate]], list[Truncate]]
"""Gives, of truncates, those that count, one for each source table. May raise Refused."""


def last_of_each(truncates: Sequence[Truncate]) -> list[Truncate]:
    """The last one of each source table: what counts where all do, as in the state of a table."""
    last: dict[tuple[str, str], Truncate] = {}
    for truncate in truncates:
        last[truncate.table] = max(truncate, last.get(truncate.table, truncate), key=lambda it: it.order)
    return sorted(last.values())


@dataclass(frozen=True, slots=True)
class TruncateRule:
    """What a logical table does with them.

    on_truncate: as in config.TargetTable. names: of the source tables that feed it in the run. alone: no other table
    can. shared: its rows say their origins.
    """

    table: str
    run_id: str
    on_truncate: str
    names: frozenset[str]
    alone: bool
    shared: bool

    def last(self, truncates: Sequence[Truncate]) -> list[Truncate]:
        """Those that count, one for each source table: the policy for TRUNCATE decides about those after a copy that
        takes the place of older rows; earlier ones are part of what it replaces.

        Raises Refused (config.table_rule).
        """
        last = {
            truncate.table: truncate
            for truncate in last_of_each([truncate for truncate in truncates if truncate.renews])
        }
        logged = [
            truncate
            for truncate in truncates
            if not truncate.renews and (truncate.table not in last or truncate.order > last[truncate.table].order)
        ]
        refused = logged if self.on_truncate == "stop" or (self.on_truncate == "apply" and not self.alone) else []
        if last and not self.alone and not self.shared:
            refused = [*refused, *last.values()]
        if refused:
            raise self._refused(refused)
        return last_of_each([*last.values(), *(logged if self.on_truncate == "apply" else [])])

    def _refused(self, refused: Sequence[Truncate]) -> Refused:
        others, effect = "", "apply removes its older rows, ignore leaves them"
        if not self.alone:
            others = f", whose rows may come from other tables than {' and '.join(sorted(self.names))} too"
            effect = (
                "ignore leaves the rows as they are; then remove those of the emptied table by hand, and plan the run "
                "again"
            )
        return Refused(
            f"The run has {sum(truncate.count for truncate in refused)} TRUNCATE of {self.table}{others}.",
            where=self.run_id,
            code="config.table_rule",
            remedy=f"set on_truncate of {self.table} in the target's tables: {effect}",
        )

    def origin(self, truncate: Truncate) -> str:
        return origin_name(*truncate.table) if self.shared else ""

    def version(self, truncate: Truncate) -> str:
        """In hex."""
        return encode(
            Version(truncate.commit_ts_us, truncate.seq, truncate.row, truncate.source, self.origin(truncate))
        ).hex()


@dataclass(frozen=True, slots=True)
class TruncatePlaces:
    """Where events are, and in which log."""

    source: Coded
    table: Coded
    seq: Numbers
    row: Numbers
    ts: Numbers


def truncates_of(places: TruncatePlaces, truncate: Flags, renews: Flags) -> list[Truncate]:
    """The last one of each source table and kind."""
    found: dict[tuple[int, int, bool], Truncate] = {}
    for at in np.flatnonzero(truncate).tolist():
        number = int(places.source.codes[at]), int(places.table.codes[at]), bool(renews[at])
        source, table = places.source.texts[number[0]], places.table.texts[number[1]]
        order, ts_us = (int(places.seq[at]), int(places.row[at])), int(places.ts[at])
        known = found.get(number)
        count = known.count + 1 if known else 1
        if known and known.order > order:
            order, ts_us = known.order, known.commit_ts_us
        found[number] = Truncate(source, table, *order, ts_us, number[2], count)
    return list(found.values())


def undone(places: TruncatePlaces, truncate: Flags, last: Sequence[Truncate], *, shared: bool) -> Flags:
    """Which events do not count: those before the last truncate of their source table, and all other truncates."""
    gone = truncate.copy()
    for latest in last:
        mine = places.source.has(latest.source)
        if shared:
            mine &= places.table.has(latest.source_table)
        same = mine & (places.seq == latest.seq) & (places.row == latest.row)
        later = (places.seq > latest.seq) | ((places.seq == latest.seq) & (places.row > latest.row))
        gone = (gone | (mine & ~later)) & ~(same & truncate)
    return gone
