"""Values that the log did not carry: each is the row's last older one, through changes of its key.

A row lives under a key from its birth there (insert, copied row, arrival from another key) to its delete or departure.
A row that arrives without all values has the rest under the key that it left, where it may have arrived the same way.
Values that no event has are at the target, perhaps still under one of these older keys: `_cdc_key_chain`, newest first,
with the version of each departure.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import numpy as np

from cdc_core.history.codes import Flags, Numbers, Runs, numbered


@dataclass(slots=True)
class KeyChains:
    """What rows that came under a new key without all values have from their older keys.

    node: by event, the number of the departure of its change; -1: none. departure, next: by node, its event, and the
    node of the key before.
    """

    node: Numbers
    departure: list[int]
    next: list[int]

    def of(self, node: int) -> list[int]:
        """The events of departures of a chain, newest first."""
        found = []
        while node >= 0:
            found.append(self.departure[node])
            node = self.next[node]
        return found


@dataclass(frozen=True, slots=True)
class Lives:
    """What says how the rows of events live. row: its number, by source, table and key. change: the number of the
    change. seq, ordinal: the order of the log."""

    row: Numbers
    change: Numbers
    seq: Numbers
    ordinal: Numbers
    arrived: Flags
    inherits: Flags
    former: Flags
    delete: Flags

    def settles(self, lacks: Flags) -> tuple[Flags, Flags]:
        """(which events settle a column that these events lack; which have its value). An arrival settles all columns:
        no older event under its key has what it lacks. A delete settles nothing: what comes after it is another row."""
        has = ~self.delete & ~lacks
        return has | self.arrived, has


def through_key_changes(
    lives: Lives, lacks: MutableMapping[str, Flags], place: MutableMapping[str, Numbers]
) -> KeyChains | None:
    """Fills, for rows that came under a new key, what older keys have; the chains, if there are any.

    lacks: by column, which events lack it; those that are filled no longer do. place: by column, the event with the
    value of each event.
    """
    leaving = np.flatnonzero(lives.former & lives.inherits)
    if not len(leaving):
        return None
    life = Runs.of(lives.row, lives.seq, lives.ordinal)
    birth = life.so_far(lives.arrived)
    # A birth is older than the departure from the key: what a node needs of its next one is there.
    leaving = leaving[np.lexsort((lives.ordinal[leaving], lives.seq[leaving]))]
    node_of_change = np.full(int(lives.change.max()) + 1, -1)
    node_of_change[lives.change[leaving]] = np.arange(len(leaving))
    arrives = lives.inherits & ~lives.former
    node = np.where(arrives, node_of_change[lives.change], -1)
    chains = KeyChains(node, leaving.tolist(), [])
    for event in leaving.tolist():
        born = int(birth[event])
        chains.next.append(int(node[born]) if born >= 0 else -1)
    arrival = np.full(len(leaving), -1)
    arriving = np.flatnonzero(node >= 0)
    arrival[node[arriving]] = arriving
    for name in lacks:
        settles, has = lives.settles(lacks[name])
        last = life.so_far(settles)[leaving]
        values: list[int] = np.where((last >= 0) & has[last], last, -1).tolist()
        for at, further in enumerate(chains.next):
            if values[at] < 0 <= further:
                values[at] = values[further]
        found = np.array(values)
        filled = (found >= 0) & (arrival >= 0)
        filled[filled] = lacks[name][arrival[filled]]
        place[name][arrival[filled]] = found[filled]
        lacks[name] = lacks[name].copy()
        lacks[name][arrival[filled]] = False
    return chains


def numbers_of_changes(source: Numbers, seq: Numbers, ordinal: Numbers) -> Numbers:
    """A number for each change: its two events have the same place in the same log."""
    _, change = np.unique(numbered([source, seq, ordinal]), return_inverse=True)
    return change
