"""A lab's tables are copied step by step, and compared with the source."""

from __future__ import annotations

from typing import Any

from cdc_core.operations.apply.retention import sweep
from cdc_core.operations.copy import pending
from cdc_core.operations.copy.copier import copier_lease, copy_tables
from cdc_core.operations.copy.copy_sources import readmit
from cdc_core.operations.copy.staging import Staged, finish_decided, stage_due
from cdc_core.source.capture import Capture
from tests.lab.lab import Lab
from tests.lab.staged_tables import table_state


def read(line: Lab, *tables: str, **options: Any) -> dict[str, Any]:
    """Reads chunks of these tables, or of the pending ones."""
    with copier_lease(line.opened, "shop") as lease:
        finish_decided(line.meta, line.store, "shop", lease)
        names = [f"{line.origin.name}.{table}" for table in tables] or pending_tables(line)
        return copy_tables(line.opened, "shop", [tuple(name.split(".", 1)) for name in names], lease, **options)


def stage(line: Lab) -> Staged:
    """Stages what was read, if the log is staged that far."""
    with copier_lease(line.opened, "shop") as lease:
        capture = Capture(line.pipeline.tables, line.pipeline.routes)
        return stage_due(line.opened, "shop", lease, capture=capture)


def copy(line: Lab, *tables: str) -> Staged:
    """Reads, extracts up to what was read, and stages it."""
    read(line, *tables)
    line.extract()
    return stage(line)


def heal(line: Lab) -> None:
    """What `lockstep run` does for the tables that are due, beside its own extraction."""
    if readmit(line.opened, "shop"):
        line.extract()  # where nothing was logged since, only meta knows yet that the table is captured again
    read(line)
    line.extract()
    stage(line)


def pending_tables(line: Lab) -> list[str]:
    """`database.table` of each."""
    return [table.name for table in pending.pending(line.meta, "shop")]


def swept(line: Lab) -> tuple[Any, ...]:
    """The parts that a sweep removes, however young."""
    return sweep(line.opened, older_than_s=-60.0)["shop"].parts


def at_source(line: Lab, table: str) -> list[tuple[Any, ...]]:
    with line.origin.session() as run:
        return sorted(run(f"SELECT * FROM {table}"), key=repr)


def in_stage(line: Lab, table: str, **options: Any) -> list[tuple[Any, ...]]:
    state = table_state(line.store, line.chain, table, **options)
    columns = [state.column(name).to_pylist() for name in state.schema.names if not name.startswith("_cdc_")]
    return sorted(zip(*columns, strict=True), key=repr)


def is_equal(line: Lab, *tables: str) -> None:
    """Stage and source have the same rows of the tables."""
    for table in tables:
        staged, held = in_stage(line, table), at_source(line, table)
        surplus, missing = [row for row in staged if row not in held], [row for row in held if row not in staged]
        assert staged == held, (table, surplus, missing)
