"""Zero dates as keys. A server finds '0000-00-00' in a NOT NULL column by `WHERE column IS NULL`, for ODBC's sake; no
statement of ours may take such a row for one that is not there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing.load import Layout, open_session
from cdc_core.targets.writing.versions import versions_of
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.integration.one_server import EACH_STORE
from tests.lab.target_rows import Winner, record_batch, target_table

KINDS = {
    "date": (pa.date32(), "0000-00-00", "2024-02-31"),
    "datetime(3)": (pa.timestamp("us"), "0000-00-00 00:00:00.000", "2024-00-01 00:00:00.000"),
    "timestamp(2)": (pa.timestamp("us", tz="UTC"), "0000-00-00 00:00:00.00", "2024-02-01 00:00:00.00"),
}


@pytest.mark.parametrize("key", [("k",), ("k", "j"), ("j", "k")])
@EACH_STORE
def test_a_row_under_a_zero_date_is_found_as_any_other(server: Any, store: str, key: tuple[str, ...]) -> None:
    for kind, (arrow, zero, other) in KINDS.items():
        definition = (
            f"CREATE TABLE {{name}} (k {kind} NOT NULL, j INT NOT NULL, f DATETIME NOT NULL, v INT, "
            f"PRIMARY KEY ({', '.join(key)}))"
        )
        columns = {"k": arrow, "j": pa.int32(), "f": pa.timestamp("us"), "v": pa.int32()}

        def change(
            op: str, k: str, v: int, seq: int, columns: dict[str, pa.DataType] = columns
        ) -> tuple[Winner, dict[str, pa.DataType]]:
            literal = {"k": k, "f": "0000-00-00 00:00:00"}
            return Winner(op, {"k": None, "j": 1, "f": None, "v": v}, (seq, seq, 0, "one"), literal=literal), columns

        with target_table(server, definition, columns, key, store=store) as table:
            for seq in (1, 1, 2, 2):
                rows = [change("u", zero, seq, seq)[0], change("u", other, seq, seq)[0]]
                table.write(rows, freshness="f")
                shown = table.query(f"SELECT CAST(k AS CHAR), v FROM {table.facts.name} ORDER BY 1")
                assert shown == [(zero, seq), (other, seq)], kind
            assert table.write([change("u", zero, 1, 1)[0]]).stale == 1
            old, new = (record_batch([change("u", zero, seq, seq)[0]], columns) for seq in (1, 2))
            with tempfile.TemporaryDirectory() as folder:
                scratch, layout = Path(folder), Layout(key, tuple(columns))
                with open_session(table.server, table.facts.database, where="test") as session:
                    assert outcomes(session, table.facts, new, layout, scratch=scratch) == ["same"]
                    assert outcomes(session, table.facts, old, layout, scratch=scratch) == ["newer"]
                    (held,) = versions_of(session, table.facts, new, key=key, freshness="f", scratch=scratch)
                    assert (held.row is not None, held.fresher) == (True, 0)
                    assert table.write([change("d", zero, 3, 3)[0]]).written == 1
                    gone = record_batch([change("d", zero, 3, 3)[0]], columns)
                    assert outcomes(session, table.facts, gone, layout, scratch=scratch) == ["same"]
            assert table.write([change("d", zero, 3, 3)[0]]).absent == 1
            assert table.write([change("u", zero, 2, 2)[0]]).stale == 1
            assert table.query(f"SELECT CAST(k AS CHAR) FROM {table.facts.name}") == [(other,)]
