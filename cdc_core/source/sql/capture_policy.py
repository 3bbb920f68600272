"""What the pipeline file says of changes that row events do not show, and of tables that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc_core import config


@dataclass(frozen=True, slots=True)
class CapturePolicy:
    """One value, passed from the pipeline file to every reader of the log.

    on_unlogged_change: 'stop', or 'record' a note in the block, when a statement changed rows without row events;
                        'resync': 'record', where a copy of the table can bring what is missing, else 'stop'.
    on_truncate:        'unlogged': as on_unlogged_change says; 'stage': a change of its own.
    on_unreadable:      'stop', or 'isolate' a table that cannot be read, and continue with the others; 'resync' is
                        'isolate' for readers of the log.
    """

    on_unlogged_change: Literal["stop", "record", "resync"] = "stop"
    on_truncate: Literal["unlogged", "stage"] = "unlogged"
    on_unreadable: Literal["stop", "isolate", "resync"] = "stop"

    @classmethod
    def from_config(cls, tables: config.CaptureRules) -> CapturePolicy:
        return cls(tables.on_unlogged_change, tables.on_truncate, tables.on_unreadable)
