"""Tables that appear after a pipeline has begun: followed or copied, as tables.on_new says."""

from __future__ import annotations

from collections.abc import Callable

from cdc_core.model.coverage import How
from cdc_core.operations.copy.pending import pending
from tests.lab.lab import Lab
from tests.lab.origin import Origin

TABLE = "CREATE TABLE {} (id INT PRIMARY KEY)"


def waiting(line: Lab) -> set[str]:
    """Tables that a copy is due for."""
    found = pending(line.meta, "shop", on_new=line.pipeline.tables.on_new)
    return {table.name.partition(".")[2] for table in found}


def widened(origin: Origin, make_line: Callable[..., Lab]) -> Lab:
    """A pipeline of which `old` and, later, `other` is captured; both have rows from before."""
    origin.execute(TABLE.format("old"), "INSERT INTO old VALUES (1)", TABLE.format("other"),
                   "INSERT INTO other VALUES (1)")  # fmt: skip
    line = make_line(tables=f"include: ['{origin.name}[.]old']")
    line.drain()
    line.change(tables=f"include: ['{origin.name}[.].*']")
    return line


def test_a_new_table_is_whole_from_its_creation_and_one_with_rows_is_copied_unless_it_is_only_to_be_followed(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    line = widened(origin, make_line)
    origin.execute(TABLE.format("fresh"), "INSERT INTO fresh VALUES (3)")
    assert line.drain() == {"old": How.EXISTING, "other": How.EXISTING, "fresh": How.CREATED}
    assert waiting(line) == {"old", "other"}
    line.change(tables="on_new: stream")
    assert waiting(line) == {"old"}
    assert line.ids("fresh") == [3]


def test_a_table_with_rows_is_not_taken_for_a_new_one_because_it_would_be_created_if_it_did_not_exist(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    line = widened(origin, make_line)
    origin.execute("INSERT INTO old VALUES (2)")
    assert line.drain()["other"] is How.EXISTING
    origin.execute("CREATE TABLE IF NOT EXISTS other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (2)")
    assert line.drain()["other"] is How.EXISTING
    assert "from before" in line.refuses("other")
