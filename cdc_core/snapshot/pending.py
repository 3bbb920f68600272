"""Which tables a copy is due for, and which cannot be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_core.errors import Refused, UsageError
from cdc_core.meta import Meta
from cdc_core.model.coverage import How, TableCoverage, lacks

_ADDITIVE = frozenset({How.EXISTING, How.COPIED, How.CREATED, How.EMPTY, How.TRUNCATED})
"""A copy adds what is missing. Rows that are gone without a trace in the log it would leave."""


@dataclass(frozen=True, slots=True)
class PendingTable:
    """A source table to copy. rows: the server's estimate, None where it is not known."""

    name: str
    why: str
    rows: int | None = None


def pending(meta: Meta, source: str, *, on_new: str = "snapshot") -> tuple[PendingTable, ...]:
    """Tables of which rows from before their capture are missing, and those whose copy is under way.

    on_new: as in config.CaptureRules; with `stream`, tables that appeared later are not copied.
    """
    coverage = meta.coverage(source).tables
    begun = {copy.table: copy for copy in meta.copies(source)}
    found = {
        table: PendingTable(table, lacks(table, source, one), one.rows)
        for table, one in coverage.items()
        if one.how is How.EXISTING and not (on_new == "stream" and one.found_later)
    }
    for table, copy in begun.items():
        found[table] = PendingTable(table, "its copy is under way", copy.rows_estimated)
    return tuple(found[table] for table in sorted(found))


def chosen(meta: Meta, source: str, tables: Sequence[str]) -> tuple[PendingTable, ...]:
    """These tables, whether anything of them is missing or not.

    Raises UsageError (snapshot.unknown_table), Refused (snapshot.unlogged).
    """
    coverage = meta.coverage(source).tables
    unknown = [name for name in tables if name not in coverage]
    if unknown:
        raise UsageError(
            f"The source {source!r} has no captured table {unknown[0]!r}.",
            where="lockstep snapshot",
            code="snapshot.unknown_table",
            remedy=f"give database.table of one of: {', '.join(sorted(coverage)) or '(it has none)'}",
        )
    for name in tables:
        _require_additive(name, source, coverage[name])
    return tuple(PendingTable(name, "it was asked for", coverage[name].rows) for name in dict.fromkeys(tables))


def _require_additive(name: str, source: str, coverage: TableCoverage) -> None:
    if coverage.how not in _ADDITIVE:
        raise Refused(
            f"{lacks(name, source, coverage)}. A copy would bring the rows that the table has now, but would not "
            "remove those that it no longer has.",
            where=name,
            code="snapshot.unlogged",
            remedy="empty the table at the source and fill it again (tables.on_truncate: stage), or load it into the "
            "targets by a dump",
        )
