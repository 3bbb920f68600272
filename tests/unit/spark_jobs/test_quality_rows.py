"""The rows that the suites judge."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa

from cdc_core.model.merged_columns import merged_schema
from spark_jobs.quality_rows import identities

TEXTS = ["", "a", "a\tb", "\\N", "\\L", "0xd2", None]


def rows(schema: pa.Schema, found: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"_cdc_op": "u", **row} for row in found], schema=schema)


def test_rows_have_the_same_identity_only_if_all_of_their_values_are_the_same_bit_by_bit() -> None:
    columns = [pa.field("t", pa.string()), pa.field("u", pa.string()), pa.field("d", pa.float64()),
               pa.field("v", pa.list_(pa.float32()))]  # fmt: skip
    different = [{"t": t, "u": u} for t, u in product(TEXTS, TEXTS)]
    different += [{"d": 0.0}, {"d": -0.0}, {"d": 0.1}, {"v": [0.0]}, {"v": [-0.0]}, {"v": []}]
    different += [{"t": "b" * 100}, {"t": "b" * 100, "_cdc_row": 1}, {"t": "b" * 101}]
    # The error value of an ENUM with the label '', and bytes that are not text.
    different += [{"t": "", "u": "", "_cdc_literal": [(name, "")]} for name in "tu"]
    different += [{"_cdc_literal": [("t", "0xd2")]}, {"_cdc_op": "t"}]
    names = ["t", "u", "d", "v", "_cdc_row"]
    batch = rows(merged_schema(columns, ()), different)
    found = identities(batch, names).to_pylist()
    assert len(set(found)) == len(different)
    assert found == [identities(batch.slice(at, 1), names)[0].as_py() for at in range(len(different))]


def test_a_truncate_is_known_by_the_source_table_and_a_plain_key_by_its_text() -> None:
    schema = merged_schema([pa.field("id", pa.int64())], ["id"], shared=True)
    truncates = [{"_cdc_op": "t", "_cdc_origin": origin} for origin in ("shop.p1", "shop.p2")]
    found = identities(rows(schema, [{"id": 7, "_cdc_origin": "shop.p1"}, *truncates]), ["id"]).to_pylist()
    assert found[0] == "7"
    assert len(set(found)) == 3
