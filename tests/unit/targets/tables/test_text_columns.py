"""Values as the text that LOAD DATA reads."""

from __future__ import annotations

import pyarrow as pa

from cdc_core.targets.tables.text_columns import column_text


def test_a_literal_stands_in_its_own_row_and_column_whatever_the_other_rows_have_and_wherever_a_slice_begins() -> None:
    literals = [[("day", "0000-00-00")], None, [], [("at", "x"), ("day", "2024-02-31")], None, [("at", "y")]]
    rows = pa.record_batch(
        {
            "day": pa.array([None, 1, 2, None, None, 3], pa.date32()),
            "_cdc_literal": pa.array(literals, pa.map_(pa.string(), pa.string())),
        }
    )
    expected = ["0000-00-00", "1970-01-02", "1970-01-03", "2024-02-31", None, "1970-01-04"]
    for low in range(7):
        for high in range(low, 7):
            assert column_text(rows.slice(low, high - low), "day").to_pylist() == expected[low:high]
