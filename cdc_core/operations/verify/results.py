"""What a verification has found: of each table its figures, and the rows that differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc_core.errors import DataAtRisk, LockstepError, TableUnready, worst
from cdc_core.model.readable import counted
from cdc_core.operations.verify.comparison import DifferenceKind
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.verify_progress import Figures


@dataclass(frozen=True, slots=True)
class Finding:
    """id: of the table and the key. key: by column; null for masked ones. columns: those that differ, with the values
    of source and target; both null for masked ones. shards: tables of the target that have the key. Only the first
    SHOWN_ROWS findings of a table have columns and shards."""

    id: str
    table: str
    kind: DifferenceKind
    wrong: Wrong
    key: Mapping[str, str | None]
    columns: Mapping[str, tuple[str | None, str | None]]
    source_rows: int
    target_rows: int
    shards: tuple[str, ...] = ()

    def to_document(self, *, values: bool) -> dict[str, Any]:
        """As JSON. values: with those of the columns that differ."""
        shown = {name: {"source": mine, "target": theirs} for name, (mine, theirs) in self.columns.items()}
        return {
            "id": self.id,
            "kind": str(self.kind),
            "wrong": str(self.wrong),
            "key": dict(self.key),
            "columns": shown if values else sorted(shown),
            "source_rows": self.source_rows,
            "target_rows": self.target_rows,
            "at": list(self.shards),
        }


@dataclass(frozen=True, slots=True)
class TableResult(Figures):
    """A table's verification. error: why it could not be verified; then the figures say nothing.

    moving, unsettled: of a count, whether it is explained by changes, or cannot be judged. findings: the first
    `KEPT_ROWS`, or as many as `KEPT_BYTES` take. whole: why it was read in one range, "" where it was cut.
    greatest_differs: of Mode.MAX_ID.
    """

    table: str
    error: LockstepError | None = None
    mode: Mode = Mode.ORDERED
    findings: tuple[Finding, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    whole: str = ""
    greatest_differs: bool = False

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

    @property
    def verdict(self) -> str:
        """The verdict, for people."""
        if self.error is not None:
            return "not compared"
        if self.differences:
            return "different"
        if self.unsettled:
            return "unsettled"
        if self.mode is Mode.RANDOM:
            return "no difference in the sample"
        if self.mode is not Mode.ORDERED:
            return "as many as changes allow" if self.moving else "as many"
        return "equal so far" if self.moving else "equal"

    def to_document(self, *, values: bool) -> dict[str, Any]:
        """As JSON. values: findings with those of the columns that differ."""
        return {
            "table": self.table,
            "verdict": self.verdict,
            "equal": proven([self]),
            "error": None if self.error is None else {"code": self.error.code, "what": self.error.what},
            "source_rows": self.source_rows,
            "target_rows": self.target_rows,
            "differences": dict(self.found),
            "moving": self.moving,
            "unsettled": self.unsettled,
            "read": [{"source": span.source, "low": str(span.low), "high": str(span.high)} for span in self.spans],
            "consumed_until": dict(self.consumed_until),
            "columns": list(self.columns),
            "left_out": dict(self.left_out),
            "ranges": self.ranges,
            "skipped_rows": self.skipped_rows,
            "greatest_differs": self.greatest_differs,
            "seconds": round(self.seconds, 3),
            "findings": [finding.to_document(values=values) for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What the verification of a target has found.

    share: of the ranges that a sample reads. seed: of a sample. started_us: when it began, also if it was interrupted
    since; µs UTC, by meta's clock. all_tables: every table of the target was compared: none was left out, and none
    could not be. servers: which one was read, by source. path: of the evidence on the stage.
    """

    target: str
    mode: Mode
    results: tuple[TableResult, ...]
    started_us: int = 0
    share: float = 1.0
    seed: int = 0
    all_tables: bool = True
    servers: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    @property
    def differences(self) -> int:
        return sum(result.differences for result in self.results)

    @property
    def error(self) -> LockstepError | None:
        """The error of the results together; None where all tables are equal."""
        return outcome(self.results, self.target)


def proven(results: Sequence[TableResult]) -> bool | None:
    """Whether all rows are equal; None where nothing was found wrong, and not all rows were compared."""
    if not all(result.agrees for result in results):
        return False
    return True if all(result.equal for result in results) else None


def finding_id(table: str, key: str) -> str:
    """The name of a finding. key: a text of `row_texts`."""
    return hashlib.sha256(f"{table}\0{key}".encode()).hexdigest()[:12]


def outcome(results: Sequence[TableResult], target: str) -> LockstepError | None:
    """The error of the results together; None where all tables are equal."""
    errors = [result.error for result in results if result.error is not None]
    different = [result for result in results if result.differences]
    if different:
        rows = sum(result.differences for result in different)
        errors.append(
            DataAtRisk(
                f"{counted(rows, 'row')} of {', '.join(result.table for result in different)} "
                f"{'differs' if rows == 1 else 'differ'}.",
                where=f"target {target}",
                code="verify.differs",
                remedy="see which side is wrong; `lockstep repair` repairs single rows (docs/verification.md)",
            )
        )
    unsettled = [result for result in results if result.unsettled]
    if unsettled:
        errors.append(
            TableUnready(
                f"{counted(sum(result.unsettled for result in unsettled), 'row')} of "
                f"{', '.join(result.table for result in unsettled)} could not be judged: they were changing.",
                where=f"target {target}",
                code="verify.unsettled",
                remedy="verify again, after the next run",
            )
        )
    return worst(errors) if errors else None
