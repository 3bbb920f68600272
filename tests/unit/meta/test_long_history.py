"""What is asked of meta stays quick however long the history is: no query reads all records for each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from cdc_core.operations.apply.retention import purge
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.opened import opened_line

ASKED: dict[str, Callable[[Line], Any]] = {
    "status": lambda line: line.meta.status.find(["t"]),
    "overview": lambda line: line.meta.overviews.find(["t"], line.pipeline.windows),
    "plan": lambda line: line.plan("next"),
    "run": lambda line: line.done("all"),
    "purge": lambda line: purge(opened_line(line), cutoff_us=2**60, forget_us=2**60),
}


@pytest.mark.parametrize("asked", ASKED)
def test_no_query_reads_a_whole_table_for_each_row_of_another(line: Line, asked: str) -> None:
    line.stage(*(manifest(number) for number in range(3)))
    line.done("first")
    line.stage(manifest(3))
    engine = line.meta._database._engine
    repeated: list[tuple[str, str]] = []

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and not many:
            explained = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            steps = {step: (parent, what) for step, parent, _, what in explained}
            for parent, what in steps.values():
                while parent in steps:
                    parent, above = steps[parent]
                    if "CORRELATED" in above and what.startswith("SCAN"):
                        repeated.append((what, statement))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        ASKED[asked](line)
    finally:
        event.remove(engine, "before_cursor_execute", explain)
    assert repeated == []
