"""Which tables a copy is due for, and which cannot be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_core.config import Pipeline
from cdc_core.errors import Refused, UsageError
from cdc_core.meta import Meta
from cdc_core.model.coverage import How, TableCoverage, lacks


@dataclass(frozen=True, slots=True)
class PendingTable:
    """A source table to copy. rows: the server's estimate, None where it is not known. how, cascaded: of its
    coverage. asked: whether anything of it is missing or not. begun: its copy is under way, or was interrupted."""

    name: str
    why: str
    rows: int | None = None
    how: How | None = None
    cascaded: bool = False
    asked: bool = False
    begun: bool = False

    def copied_by_runs(self, pipeline: Pipeline) -> bool:
        """Whether `lockstep run` copies it: as the pipeline's policy for what is missing says."""
        if self.begun or self.how is How.ABANDONED:  # who gives up the log asks for it
            return True
        resync = pipeline.tables.on_unlogged_change == "resync"
        if self.how is How.UNLOGGED or (self.cascaded and self.how is not None and self.how.whole):
            return resync
        return (
            (self.cascaded and resync)
            or pipeline.snapshot.mode == "initial"
            or (self.how is How.CAPTURED_AGAIN and pipeline.tables.on_unreadable == "resync")
        )


def pending(meta: Meta, source: str, *, on_new: str = "snapshot") -> tuple[PendingTable, ...]:
    """Tables of which rows or changes are missing that a copy brings, and those whose copy is under way.

    on_new: as in config.CaptureRules; with `stream`, tables that appeared later are not copied because of their earlier
    rows.
    """
    coverage = meta.coverages.find(source).tables
    begun = {copy.table: copy for copy in meta.copies.find(source)}
    tables = {
        table: PendingTable(table, lacks(table, source, covered), covered.rows, covered.how, covered.cascaded)
        for table, covered in coverage.items()
        if covered.due and (covered.cascaded or not (on_new == "stream" and covered.found_later))
    }
    for table, copy in begun.items():
        known = coverage.get(table)
        tables[table] = PendingTable(
            table,
            "its copy is under way",
            copy.rows_estimated,
            None if known is None else known.how,
            known is not None and known.cascaded,
            begun=True,
        )
    return tuple(tables[table] for table in sorted(tables))


def copied_by_runs(meta: Meta, pipeline: Pipeline, source: str) -> tuple[PendingTable, ...]:
    """The pending tables that runs copy without being asked, or finish."""
    tables = pending(meta, source, on_new=pipeline.tables.on_new)
    return tuple(table for table in tables if table.copied_by_runs(pipeline))


def still_pending(meta: Meta, source: str, tables: Sequence[PendingTable]) -> tuple[PendingTable, ...]:
    """What is left of these tables for who has the copier's lease by now: its last holder may have copied some."""
    left = {table.name for table in pending(meta, source)}
    return tuple(table for table in tables if table.asked or table.name in left)


def captured(meta: Meta, source: str) -> tuple[tuple[PendingTable, ...], dict[str, str]]:
    """Every captured table that is there, whether anything of it is missing or not; and why others, of which the stage
    has rows, are not copied."""
    coverage = meta.coverages.find(source).tables
    left = {name: lacks(name, source, covered) for name, covered in coverage.items() if not covered.how.captured}
    left |= {
        name: f"{name} of {source} is gone" for name, covered in coverage.items() if covered.gone and name not in left
    }
    return chosen(meta, source, sorted(coverage.keys() - left.keys())), dict(sorted(left.items()))


def chosen(meta: Meta, source: str, tables: Sequence[str]) -> tuple[PendingTable, ...]:
    """These tables, whether anything of them is missing or not.

    Raises UsageError (usage.unknown_name), Refused (table.not_captured).
    """
    coverage = {name: table for name, table in meta.coverages.find(source).tables.items() if not table.gone}
    unknown = [name for name in tables if name not in coverage]
    if unknown:
        raise UsageError(
            f"The source {source!r} has no captured table {unknown[0]!r}.",
            where="lockstep snapshot",
            code="usage.unknown_name",
            remedy=f"give database.table, one of: {', '.join(sorted(coverage)) or '(it has none)'}",
        )
    for name in tables:
        _require_captured(name, source, coverage[name])
    return tuple(
        PendingTable(
            name, "it was asked for", coverage[name].rows, coverage[name].how, coverage[name].cascaded, asked=True
        )
        for name in dict.fromkeys(tables)
    )


def _require_captured(name: str, source: str, coverage: TableCoverage) -> None:
    if not coverage.how.captured:
        raise Refused(
            f"{lacks(name, source, coverage)}. Its changes are not staged, so a copy would be outdated at once.",
            where=name,
            code="table.not_captured",
            remedy="an isolated table cannot be read even now: fix the cause (`lockstep stage isolated` names it), "
            "then copy the table; one that the pipeline leaves out must be captured (tables.include)",
        )
