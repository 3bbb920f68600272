"""The SQL by which each engine reads a mirror at a cut."""

from __future__ import annotations

from cdc_core.operations.lake.cuts_at import CutView


def test_names_that_are_no_words_are_quoted_as_the_engine_does() -> None:
    view = CutView("a-b", ("shop", "a-b"), 7, "s3://lake/metadata.json")
    assert view.sql("spark", "lake") == "SELECT * FROM lake.shop.`a-b` VERSION AS OF 7"
    assert view.sql("trino", "lake") == 'SELECT * FROM lake.shop."a-b" FOR VERSION AS OF 7'
    assert view.sql("duckdb", "lake") == ("SELECT * FROM iceberg_scan('s3://lake/metadata.json', snapshot_from_id = 7)")
    dotted = CutView("d.a.b", ("shop", "a.b"), 7, "s3://lake/metadata.json")
    assert dotted.sql("spark", "lake") == "SELECT * FROM lake.shop.`a.b` VERSION AS OF 7"


def test_a_mirror_that_was_empty_at_the_cut_has_no_rows() -> None:
    view = CutView("t", ("shop", "t"), None, "s3://lake/metadata.json")
    assert view.sql("spark", "lake") == "SELECT * FROM lake.shop.t WHERE false"
    assert view.sql("duckdb", "lake") == "SELECT * FROM iceberg_scan('s3://lake/metadata.json') WHERE false"
