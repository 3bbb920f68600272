"""JSON arrives as the text that the source prints: numbers of DECIMALs, too."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.tables.json_columns import exact_numbers
from cdc_core.targets.writing.load import Layout, open_session
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.lab.target_rows import Table, Winner, record_batch, target_table

COLUMNS = {"id": pa.int64(), "doc": pa.string(), "second": pa.string()}
HAND_WRITTEN = [
    "JSON_OBJECT('d', CAST('12345678901234567890.123456789' AS DECIMAL(40,9)), 'n', CAST(-1.50 AS DECIMAL(5,2)))",
    "JSON_OBJECT('a\"b', CAST(0 AS DECIMAL(5,2)), 'q''s', JSON_ARRAY(1, CAST(2.10 AS DECIMAL(5,2)), 'x1.50', 2.5e0))",
    "CAST(CAST(7.00 AS DECIMAL(5,2)) AS JSON)",
    "JSON_ARRAY(CAST(123456789012345678901234567890 AS DECIMAL(65,0)), 18446744073709551615, -9223372036854775808)",
    "JSON_ARRAY(1e300, 1e-300, 5e-324, 1.7976931348623157e308, 0.1e0, 100e0, -0e0, 1e15, 123456789012345680e0)",
    "JSON_ARRAY(CAST(0.0000001 AS DECIMAL(20,10)), CAST(1000000000000000.0 AS DECIMAL(30,1)), 1e-5, 0.0001e0)",
    "JSON_OBJECT('t', TIME'10:11:12', 'd', DATE'2024-01-01', 'ts', TIMESTAMP'2024-01-01 10:11:12.1', 'b', X'00FF')",
    "JSON_OBJECT('a', JSON_OBJECT('', JSON_ARRAY(JSON_ARRAY(), JSON_OBJECT(), CAST(1.10 AS DECIMAL(9,2)))), 'z', ',{')",
    "JSON_OBJECT('back\\\\slash', CAST(1.10 AS DECIMAL(9,2)), 'é\U0001f600$.a[0]', CAST(1.10 AS DECIMAL(9,2)))",
    "JSON_OBJECT('new\\nline', CAST(1.10 AS DECIMAL(9,2)), 'one', 1.0)",
    "JSON_ARRAY(CAST(REPEAT('9', 65) AS DECIMAL(65,30)), CAST('0.000000000000000000000000000001' AS DECIMAL(65,30)))",
]  # fmt: skip


@pytest.fixture(scope="module")
def table(mysql9: Any) -> Iterator[Table]:
    with target_table(mysql9, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, doc JSON, second JSON)", COLUMNS) as made:
        yield made


def arrives(table: Table, texts: list[str], tmp_path: Path) -> None:
    """The texts, as a MySQL source prints them, are what the target prints; and the read-back says so."""
    table.clear()
    rows = [{"id": at, "doc": text, "second": texts[-1 - at]} for at, text in enumerate(texts)]
    winners = [Winner("u", row, (1, 1, at, "one")) for at, row in enumerate(rows)]
    table.write(winners)
    assert table.rows("CAST(doc AS CHAR), CAST(second AS CHAR)") == [(row["doc"], row["second"]) for row in rows]
    with open_session(table.server, table.facts.database, where="test") as connection:
        layout = Layout(("id",), tuple(COLUMNS), documents=frozenset({"doc", "second"}))
        found = outcomes(connection, table.facts, record_batch(winners, COLUMNS), layout, scratch=tmp_path)
    assert set(found) == {"same"}


def printed(table: Table, expressions: list[str]) -> list[str]:
    return [table.query(f"SELECT CAST({expression} AS CHAR)")[0][0] for expression in expressions]


def test_numbers_arrive_with_all_of_their_digits(table: Table, tmp_path: Path) -> None:
    texts = printed(table, HAND_WRITTEN)
    assert '{"d": 12345678901234567890.123456789, "n": -1.50}' in texts
    arrives(table, texts, tmp_path)


def test_the_read_back_sees_a_number_that_lost_digits(table: Table, tmp_path: Path) -> None:
    winner = Winner("u", {"id": 1, "doc": '{"n": -1.50}', "second": "1"}, (1, 1, 0, "one"))
    table.clear()
    table.write([winner])
    # In two steps: the server leaves a number alone that is equal to what it is set to.
    table.query(f"UPDATE {table.facts.name} SET doc = NULL")
    table.query(f"UPDATE {table.facts.name} SET doc = '{{\"n\": -1.50}}'")
    with open_session(table.server, table.facts.database, where="test") as connection:
        layout = Layout(("id",), tuple(COLUMNS), documents=frozenset({"doc", "second"}))
        batch = record_batch([winner], COLUMNS)
        assert outcomes(connection, table.facts, batch, layout, scratch=tmp_path) == ["differs"]


DECIMALS = st.builds(
    lambda digits, scale, sign: f"CAST('{sign}{Decimal(digits).scaleb(-scale):f}' AS DECIMAL(65,{scale}))",
    st.integers(0, 10**34),
    st.integers(0, 30),
    st.sampled_from(["", "-"]),
)
DOUBLES = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]).filter(
    lambda number: number == number and abs(number) != float("inf")
)  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


def quoted(text: str) -> str:
    return f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)"


LEAVES = st.one_of(
    DECIMALS,
    DOUBLES.map(lambda number: f"{number!r}e0" if "e" not in repr(number) else repr(number)),
    st.floats(-1e6, 1e6).map(lambda number: f"{round(number, 2):.2f}e0"),
    st.integers(-(2**63), 2**64 - 1).map(str),
    NAMES.map(quoted),
    st.just("'-1.50, \"1.50\": [2.50]'"),
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"JSON_ARRAY({', '.join(parts)})"),
        st.dictionaries(NAMES, inner, max_size=4).map(
            lambda parts: f"JSON_OBJECT({', '.join(f'{quoted(name)}, {value}' for name, value in parts.items())})"
        ),
    ),
    max_leaves=12,
).map(lambda value: f"JSON_ARRAY({value})")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(DOCUMENTS, min_size=1, max_size=6))
def test_any_document_that_a_server_prints_arrives_as_it_is(table: Table, documents: list[str], tmp_path: Path) -> None:
    arrives(table, printed(table, documents), tmp_path)


def test_texts_without_such_numbers_go_up_as_they_are() -> None:
    plain = pa.array(['{"a": 1.5, "b": [12.25, 1e300, 42], "c": "1.50"}', None, "18446744073709551615", "0.0", "-0.0"])
    assert exact_numbers(plain).numbers == {}
    exact = exact_numbers(pa.array([None, '{"a": [1, 1.50], "b": "1.50"}']))
    assert exact.numbers == {1: (('$."a"[1]', 2),)}
    assert json.loads(exact.text[1].as_py())["a"][1] == "1.50"
