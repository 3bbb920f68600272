"""Which event of a key is the last one, in two steps: no single order of events is right for both.

Within a source the log decides, whatever its clock did; between sources the clock decides.
"""

from __future__ import annotations

import numpy as np

from cdc_core.history.codes import Flags, Numbers, Runs, numbered


def within_sources(key: Numbers, source: Numbers, origin: Numbers, seq: Numbers, row: Numbers) -> Runs:
    """The events of each key, source and origin in the order of the log."""
    return Runs.of(numbered([key, source, origin]), seq, row)


def between_sources(
    key: Numbers, ts: Numbers, source: Numbers, log: tuple[Numbers, Numbers], live: Flags, *, shared: bool
) -> Runs:
    """The last events of each key, one of each source and origin, so that the one that wins is the last. log: seq and
    row. live: its row is there. shared: as in TableRule: a row that is there wins over those that are gone, and of two
    tables of one source the log decides again."""
    if shared:
        return Runs.of(key, live.astype(np.int64), ts, source, *log)
    return Runs.of(key, ts, source)
