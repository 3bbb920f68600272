"""SQL over the views of all staged tables: what a query sees, and that it reaches nothing else."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from cdc_core.errors import UsageError
from cdc_core.stage.sql_views import sql
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made
from tests.lab.made_stages import KEYLESS, delete, insert, stage
from tests.lab.refusals import raises


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/stage")


def test_sql_sees_states_and_changes_by_quoted_name_and_by_schema(store):
    batches = stage(store, [Made([insert(1), insert(2)])], [Made([delete(1), insert(7, "k", KEYLESS)])])
    query = (
        'SELECT (SELECT count(*) FROM "shop.orders") a, (SELECT count(*) FROM shop.orders_changes) b, n FROM shop.log'
    )
    assert sql(store, {"shop": batches}, query).to_pylist() == [{"a": 1, "b": 3, "n": 7}]


@pytest.mark.parametrize("name", ["plain", "a.b.c", 'qu"ote', "emoji 😀.täble/x", "main.orders", "select"])
def test_sql_knows_every_logical_name_when_quoted(store, name):
    # Another table, whose name occurs in the query too.
    batches = stage(store, [Made([insert(1, logical=name), insert(2, logical="e")])])
    quoted = '"' + name.replace('"', '""') + '"'
    assert sql(store, {"shop": batches}, f"SELECT id FROM {quoted}").to_pylist() == [{"id": 1}]
    changes_view = '"' + f"{name}_changes".replace('"', '""') + '"'
    assert sql(store, {"shop": batches}, f"SELECT _cdc_op FROM {changes_view}").to_pylist() == [{"_cdc_op": "c"}]


def test_a_wrong_query_is_a_usage_error_that_names_the_tables(store):
    with raises(UsageError, "stage.sql", match=r"shop\.orders"):
        sql(store, {"shop": stage(store, [Made([insert(1)])])}, "SELECT * FROM nothing")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM shop.orders ORDER BY id",
        "FROM shop.orders SELECT id",
        "WITH a AS (SELECT id FROM shop.orders) SELECT * FROM a",
        "EXPLAIN SELECT * FROM shop.orders",
        "EXPLAIN ANALYZE SELECT * FROM shop.orders",
        "DESCRIBE shop.orders",
        "SUMMARIZE shop.orders",
        "SHOW ALL TABLES",
        "PIVOT shop.orders ON note USING count(*)",
        "VALUES (1)",
        "SELECT 'copy' AS copy",
        "SELECT 1; SELECT id FROM shop.orders",
    ],
)
def test_every_kind_of_question_is_answered(store, query):
    assert sql(store, {"shop": stage(store, [Made([insert(1)])])}, query).num_rows


def test_a_query_makes_no_rows_of_views_that_it_does_not_read(store, monkeypatch):
    batches = stage(store, [Made([insert(1)])])
    for reader in ("state_rows", "by_key_rows", "history_rows"):
        monkeypatch.setattr(f"cdc_core.stage.sql_views.{reader}", None)
    described = sql(store, {"shop": batches}, "SELECT column_name FROM information_schema.columns -- orders")
    assert {"id", "_before", "_cdc_seq"} <= {*described.column("column_name").to_pylist()}


def test_an_empty_query_answers_nothing(store):
    assert sql(store, {"shop": stage(store, [Made([insert(1)])])}, " -- orders").num_columns == 0


def test_a_query_larger_than_memory_still_spills_to_disk(store, monkeypatch):
    real = duckdb.connect

    def small(**options: Any) -> Any:
        return real(config={**options["config"], "memory_limit": "60MB", "threads": 1})

    monkeypatch.setattr(duckdb, "connect", small)
    query = "SELECT count(*) AS n, max(s) AS s FROM (SELECT DISTINCT i, md5(i::VARCHAR) AS s FROM range(2000000) t(i))"
    assert sql(store, {"shop": stage(store, [Made([insert(1)])])}, query).column("n").to_pylist() == [2_000_000]


def test_tables_that_differ_in_letter_case_only_have_no_views(store):
    names = {"z1.t": 1, "z1.T": 2, "Z1.t": 3, "z1.u": 4, "x": 5, "X_changes": 6, "y": 7}
    batches = stage(store, [Made([insert(number, logical=name) for name, number in names.items()])])
    for query in ("SELECT id FROM z1.t", 'SELECT id FROM "z1.T"', "SELECT id FROM x", "SELECT * FROM x_changes"):
        with pytest.raises(UsageError, match="does not exist") as caught:
            sql(store, {"shop": batches}, query)
        assert "read X_changes, Z1.t, x, z1.T, z1.t in Python" in caught.value.remedy
    assert sql(store, {"shop": batches}, "SELECT id FROM z1.u").to_pylist() == [{"id": 4}]
    assert sql(store, {"shop": batches}, "SELECT id FROM Y").to_pylist() == [{"id": 7}]
