"""Tables with a FULLTEXT index, for which InnoDB keeps a column FTS_DOC_ID: hidden, or the user's own."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.one_server import FIRST_MYSQL
from tests.lab.copying import at_source, in_stage
from tests.lab.verified import Verified

OWN = "FTS_DOC_ID BIGINT UNSIGNED NOT NULL, id INT PRIMARY KEY, body TEXT"
ROWS = [(1, "one word"), (2, None), (3, "three words")]


@FIRST_MYSQL
def test_a_hidden_column_is_not_captured_and_no_table_with_one_of_the_user_is_written(
    verified: Callable[..., Verified],
) -> None:
    run = verified(snapshot="mode: initial")
    run.source(
        "CREATE TABLE hidden (id INT PRIMARY KEY, body TEXT, FULLTEXT KEY words (body))",
        "CREATE TABLE later (id INT PRIMARY KEY, body TEXT)",
        f"CREATE TABLE own ({OWN}, FULLTEXT KEY words (body), UNIQUE KEY FTS_DOC_ID_INDEX (FTS_DOC_ID))",
        *(f"INSERT INTO {table} VALUES (1, 'a word'), (2, NULL)" for table in ("hidden", "later")),
        "INSERT INTO own VALUES (7, 1, 'a word')",
    )
    for table in ("hidden", "later"):
        run.target(f"CREATE TABLE {table} LIKE {run.origin.name}.{table}")
    run.change_target(tables={"hidden": {"database": run.place}, "later": {"database": run.place}})
    run.begin_now()
    run.ok("run")
    run.source(
        "ALTER TABLE later ADD FULLTEXT KEY words (body)",
        *(f"UPDATE {table} SET body = 'one word' WHERE body = 'a word'" for table in ("hidden", "later")),
        *(f"INSERT INTO {table} VALUES (3, 'three words'), (4, 'four')" for table in ("hidden", "later")),
        "DELETE FROM hidden WHERE id = 4",
        "DELETE FROM later WHERE id = 4",
        "UPDATE own SET FTS_DOC_ID = 8, body = 'one word'",  # the server wants a greater one
        "INSERT INTO own VALUES (9, 2, 'four')",
        "DELETE FROM own WHERE id = 2",
    )
    run.ok("run")
    assert run.ok("verify")["equal"] is True
    for table in ("hidden", "later"):
        assert run.rows(table) == at_source(run, table) == in_stage(run, table) == ROWS
    assert at_source(run, "own") == in_stage(run, "own") == [(8, 1, "one word")]
    # The server wants ids in rising order, which no order of writes to a target keeps.
    run.change_target(tables={"own": {"database": run.place}}, name="other", on_missing_table="create")
    assert run("run").document["error"]["code"] == "target.limit"
