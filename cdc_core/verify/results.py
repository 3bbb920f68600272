"""What a verification has found: of each table its figures, and the rows that differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_core.errors import LockstepError
from cdc_core.verify.comparison import Kind
from cdc_core.verify.judgement import Wrong
from cdc_core.verify.modes import Mode
from cdc_core.verify.progress import Figures


@dataclass(frozen=True, slots=True)
class Finding:
    """id: of the table and the key. key: by column; null for masked ones. columns: those that differ, with the values
    of source and target; both null for masked ones. shards: tables of the target that have the key. Only the first
    SHOWN_ROWS findings of a table have columns and shards."""

    id: str
    table: str
    kind: Kind
    wrong: Wrong
    key: Mapping[str, str | None]
    columns: Mapping[str, tuple[str | None, str | None]]
    source_rows: int
    target_rows: int
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableResult(Figures):
    """A table's verification. error: why it could not be verified; then the figures say nothing.

    moving, unsettled: of a count, whether it is explained by changes, or cannot be judged. findings: the first
    `KEPT_ROWS`, or as many as `KEPT_BYTES` take. whole: why it was read in one range, "" where it was cut.
    greatest_differs: of Mode.MAX_ID. unreplayed: rows are unsettled because nothing tells what a target has that only
    replays feed.
    """

    table: str
    error: LockstepError | None = None
    mode: Mode = Mode.ORDERED
    findings: tuple[Finding, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    whole: str = ""
    greatest_differs: bool = False
    unreplayed: bool = False

    @property
    def differences(self) -> int:
        return sum(self.found.values())

    @property
    def agrees(self) -> bool:
        """Nothing was found wrong, as far as the mode looks."""
        return self.error is None and not self.differences and not self.unsettled

    @property
    def equal(self) -> bool:
        """Proven, row by row."""
        return self.agrees and self.mode is Mode.ORDERED


@dataclass(frozen=True, slots=True)
class Verified:
    """seed: of a sample. started_us: when it began, also if it was interrupted since; µs UTC, by meta's clock.
    all_tables: every table of the target was compared: none was left out, and none could not be. servers: which one was
    read, by source."""

    results: tuple[TableResult, ...]
    started_us: int
    seed: int
    all_tables: bool = True
    servers: Mapping[str, str] = field(default_factory=dict)


def finding_id(table: str, key: str) -> str:
    """The name of a finding. key: a text of `row_texts`."""
    return hashlib.sha256(f"{table}\0{key}".encode()).hexdigest()[:12]
