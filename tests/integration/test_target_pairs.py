"""Pairs of types that target.pairs allows keep all values; for each that it refuses it names an ALTER that helps."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.targets.reading import read_back
from cdc_core.targets.reading.table_facts import declaration, table_facts
from cdc_core.targets.tables import type_pairs as pairs
from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing.load import Layout, open_session
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.integration.one_server import EACH_STORE
from tests.lab.databases import is_newest
from tests.lab.target_rows import Winner, record_batch, require_table, target_table

POINT = bytes(4) + struct.pack("<BIdd", 1, 1, 1.5, -2.5)
U = dt.UTC
FLT_MAX = float(np.finfo(np.float32).max)

# Source type -> values at its edges, as the stage has them.
EDGES: dict[str, list[Any]] = {
    "tinyint": [-128, 127],
    "tinyint unsigned": [0, 255],
    "smallint": [-(2**15), 2**15 - 1],
    "mediumint": [-(2**23), 2**23 - 1],
    "mediumint unsigned": [2**24 - 1],
    "int": [-(2**31), 2**31 - 1],
    "int unsigned": [2**32 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "bigint unsigned": [2**64 - 1],
    "decimal(10,2)": [Decimal("-99999999.99"), Decimal("99999999.99"), Decimal("0.01")],
    "decimal(12,3) unsigned": [Decimal("999999999.999")],
    "float": [FLT_MAX, -FLT_MAX, 1.401298464324817e-45, 0.1, 16777217.0, -0.0, 1.1754943508222875e-38],
    "double": [1.7976931348623157e308, 5e-324, 0.1 + 0.2, -0.0],
    "bit(1)": [True, False],
    "bit(8)": [0, 255],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "year": [0, 1901, 2155],
    "time": ["-838:59:59", "838:59:59", "00:00:00"],
    "time(3)": ["-00:00:00.001", "838:59:58.999"],
    "datetime": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)],
    "datetime(6)": [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1000, 1, 1, 0, 0, 0, 1)],
    "timestamp": [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=U), dt.datetime(2038, 1, 19, 3, 14, 7, tzinfo=U)],
    "timestamp(6)": [dt.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=U)],
    "enum('a','bb','c d')": ["a", "bb", "c d"],
    "set('x','yy','z')": ["", "x", "x,yy,z"],
    "char(5)": ["", "a", " ab", "\u00e4\u00f6\u00fc\u20ac\u00df"],
    "varchar(5)": ["", "a  ", "   ", "ab\t\n\0", "\u00e4\u00f6\u00fc\u20ac\u00df"],
    "varchar(200)": ["\u00e4" * 200],
    "tinytext": ["a" * 255, "  "],
    "text": ["a" * 65535],
    "mediumtext": ["b" * 65536],
    "json": ['{"a": [1, 2.5, null], "b": "\\"x\\\\"}'],
    "binary(4)": [b"\0\0\0\0", b"a\0\0\0", b"\xff \0 "],
    "varbinary(4)": [b"", b"a", b"a\0", b"a  "],
    "tinyblob": [bytes(255)],
    "blob": [bytes(65535)],
    "geometry": [POINT],
    "point": [POINT],
}  # fmt: skip
CHARSETS = ("utf8mb4", "utf8mb3", "latin1", "ascii", "ucs2", "cp1251")
TARGETS = (
    *EDGES, "decimal(20,0)", "decimal(22,2)", "decimal(9,2) unsigned", "float(7,3)", "double(8,2)", "float unsigned",
    "bit(9)", "datetime(3)", "time(6)", "enum('c d','bb','a','more')", "set('z','yy','x')", "char(6)", "char(20)",
    "varchar(4)", "varchar(20)", "varchar(65)", "longtext", "binary(5)", "varbinary(5)", "longblob", "polygon",
)  # fmt: skip


def kind(declared: str, charset: str = "utf8mb4") -> ColumnType:
    parsed = parse_column_type(declared)
    texts = pairs.TEXT_BASES | {"enum", "set"}
    return parse_column_type(declared, charset=charset, collation="") if parsed.base in texts else parsed


def arrow(source: ColumnType) -> pa.DataType:
    return pa.decimal128(20, 0) if source.arrow == pa.uint64() else source.arrow  # as Spark has it


def exact(declared: str, column: str) -> str:
    """SQL of a column's value as text that hides nothing."""
    base = parse_column_type(declared).base
    if base == "bit":
        return f"CAST({column} + 0 AS CHAR)"
    if base in ("float", "double"):
        return f"CAST(CAST({column} AS DOUBLE) AS CHAR)"
    if base == "json":
        return f"CAST({column} AS CHAR)"
    if base == "set":
        return f"CONVERT({column} USING utf8mb4)"
    texts = pairs.TEXT_BASES | {"enum"}
    return (
        f"HEX(CONVERT({column} USING utf8mb4))"
        if base in texts
        else f"HEX({column})"
        if (base in pairs.BINARY_BASES | pairs.GEOMETRY_BASES)
        else f"CAST({column} AS CHAR)"
    )


def same(source: ColumnType, target: str, value: Any, found: str) -> bool:
    """Whether the text that `exact` gave is the value."""
    if isinstance(value, bytes):
        return found == value.hex().upper()
    base = parse_column_type(target).base
    if source.base in pairs.TEXT_BASES | {"enum", "set", "json"}:
        text = found if base in ("json", "set") else bytes.fromhex(found).decode()
        return text == value or (source.base == "set" and set(text.split(",")) == set(value.split(",")))
    if source.base in ("float", "double"):
        wanted = float(np.float32(value)) if source.base == "float" else value
        return struct.pack("<d", float(found)) == struct.pack("<d", wanted)
    if source.base in pairs.INTEGER_BYTES or source.base in ("decimal", "bit", "year"):
        return Decimal(found) == Decimal(int(value) if isinstance(value, bool) else value)
    if isinstance(value, dt.datetime):
        return dt.datetime.fromisoformat(found).replace(tzinfo=value.tzinfo) == value
    if source.base == "time":
        return found.partition(".")[0] == value.partition(".")[0] and found.startswith(value)
    return found == str(value)


def every_pair(server: Any) -> list[tuple[str, str]]:
    """Allowed pairs, whose types the server has."""
    mariadb = server.mariadb
    return [
        (edge, other)
        for edge in EDGES
        for other in TARGETS
        if not pairs.problem(kind(edge), kind(other)) and not (mariadb and "json" in (edge, other))
    ]


def test_every_value_of_an_allowed_pair_arrives_as_it_is(server: Any, tmp_path: Any) -> None:
    """All pairs are the columns of one table: one row for each edge."""
    chosen = every_pair(server)
    assert len(chosen) > 100
    names = [f"c{number}" for number in range(len(chosen))]
    columns = {"id": pa.int64()} | {name: arrow(kind(one)) for name, (one, _) in zip(names, chosen, strict=True)}
    declared = ", ".join(f"{name} {other} NULL" for name, (_, other) in zip(names, chosen, strict=True))
    definition = f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, {declared}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC"
    count = max(len(values) for values in EDGES.values())
    with target_table(server, definition, columns) as table:
        rows = [
            {"id": at} | {n: EDGES[one][at % len(EDGES[one])] for n, (one, _) in zip(names, chosen, strict=True)}
            for at in range(count)
        ]
        rows = [{name: _staged(value) for name, value in row.items()} for row in rows]
        table.write([Winner("u", row, (1, 1, at, "one")) for at, row in enumerate(rows)])
        table.query("SET time_zone = '+00:00'")
        found = table.rows(", ".join(exact(other, n) for n, (_, other) in zip(names, chosen, strict=True)))
        if is_newest(server):
            rows = [
                {name: 0.0 if isinstance(value, float) and value == 0 else value for name, value in row.items()}
                for row in rows
            ]
        wrong = [
            (one, other, row[name], value)
            for row, values in zip(rows, found, strict=True)
            for name, (one, other), value in zip(names, chosen, values, strict=True)
            if not same(kind(one), other, row[name], value)
        ]
        assert wrong == []
        with open_session(table.server, table.facts.database, where="test") as connection:
            batch = record_batch([Winner("u", row, (1, 1, at, "one")) for at, row in enumerate(rows)], columns)
            assert set(outcomes(connection, table.facts, batch, Layout(("id",), tuple(columns)), scratch=tmp_path)) == {
                "same"
            }
            several = [Layout(("id",), ("id", name)) for name in names]
            plain = [layout for layout in several if read_back.readable(table.facts, batch.schema, layout)]
            assert len(plain) > 60
            for layout in plain:
                name = layout.columns[1]
                one, other = chosen[names.index(name)]
                # A SET with its labels in another order has other texts, which the server makes equal.
                reordered = one.startswith("set(") and not other.startswith(one)
                assert read_back.as_expected(connection, table.facts, batch, layout).all() or reordered, (one, other)
                # By client and server (both_readers): rows with the values of others.
                moved = batch.set_column(
                    batch.schema.get_field_index(name), name, batch.column(name).take(pa.array([*range(1, count), 0]))
                )
                outcomes(connection, table.facts, moved, layout, scratch=tmp_path)


def _staged(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 2**63 else value


def test_every_refused_pair_names_an_alter_that_helps(server: Any) -> None:
    """For each source type one table with a column of each refused type: after the ALTERs it is taken."""
    mariadb = server.mariadb
    with target_table(server) as table:
        table.query("SET SESSION sql_mode = ''")  # a strict MariaDB makes nothing else of a geometry
        for edge in EDGES:
            others = [
                (f"c{n}", other)
                for n, other in enumerate(TARGETS)
                if pairs.problem(kind(edge), kind(other)) and not (mariadb and other == "json")
            ]
            source = tuple(Column(name, kind(edge)) for name, _ in others)
            declared = ", ".join(f"{name} {other} NULL" for name, other in others)
            table.query(f"CREATE OR REPLACE TABLE {table.facts.database}.r (id INT PRIMARY KEY, {declared})" if mariadb
                        else f"CREATE TABLE {table.facts.database}.r (id INT PRIMARY KEY, {declared})")  # fmt: skip
            schema = TableSchema("s", "r", (Column("id", kind("int"), nullable=False, key_part=1), *source))
            facts = table_facts(table.connection, table.facts.database, ["r"])["r"]
            with pytest.raises(Refused) as caught:
                require_table(facts, schema, ["id"], name=facts.name, mariadb=mariadb)
            parts = caught.value.parts or (caught.value,)
            assert len(parts) == len(others), edge
            assert {part.code for part in parts} == {"target.definition"}
            changes = [part.remedy.partition(". If the server ")[0].partition(" MODIFY ") for part in parts]
            table.query(f"{changes[0][0]} MODIFY {', MODIFY '.join(change for _, _, change in changes)}")
            facts = table_facts(table.connection, table.facts.database, ["r"])["r"]
            require_table(facts, schema, ["id"], name=facts.name, mariadb=mariadb)
            if not mariadb:
                table.query(f"DROP TABLE {table.facts.database}.r")


def test_a_column_that_replaces_null_is_refused_where_the_source_may_have_some(server: Any) -> None:
    definition = (
        "CREATE TABLE {name} (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00', "
        "n INT NOT NULL AUTO_INCREMENT UNIQUE, plain INT NOT NULL)"
    )
    names = {"ts": "timestamp", "n": "int", "plain": "int"}
    id = Column("id", kind("int"), nullable=False, key_part=1)
    with target_table(server, definition) as table:
        for narrower in (False, True):
            nullable = TableSchema("s", "t", (id, *(Column(name, kind(declared)) for name, declared in names.items())))
            with pytest.raises(Refused, match="replaces null") as caught:
                require_table(table.facts, nullable, ["id"], name="t", narrower=narrower)
            assert len(caught.value.parts) == 2
        filled = TableSchema(
            "s", "t", (id, *(Column(name, kind(declared), nullable=False) for name, declared in names.items()))
        )
        require_table(table.facts, filled, ["id"], name="t")
        for part in caught.value.parts:
            table.query(part.remedy)
        facts = table_facts(table.connection, table.facts.database, ["t"])["t"]
        require_table(facts, nullable, ["id"], name="t")


CHARACTERS = {
    "ascii": ["a", "~"],
    "latin1": ["\u00e4", "\u20ac", "\u0178"],
    "cp1251": ["\u0416", "\u2116"],
    "utf8mb3": ["\u00e4", "\u0416", "\u4e2d", "\uffff"],
    "ucs2": ["\u0416", "\u4e2d"],
    "utf8mb4": ["\u00e4", "\U0001f600"],
}


def test_charsets_that_hold_another_take_all_of_its_characters(server: Any) -> None:
    chosen = [
        (source, target)
        for source in CHARSETS
        for target in CHARSETS
        if not pairs.problem(kind("varchar(9)", source), kind("varchar(9)", target))
    ]
    assert ("utf8mb4", "latin1") not in chosen
    assert ("latin1", "utf8mb3") in chosen
    assert pairs.problem(kind("text", "latin1"), kind("text")) == pairs.SHORTER
    columns = {"id": pa.int64()} | {f"c{n}": pa.string() for n in range(len(chosen))}
    declared = ", ".join(f"c{n} VARCHAR(9) CHARACTER SET {target}" for n, (_, target) in enumerate(chosen))
    with target_table(server, f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, {declared})", columns) as table:
        row = {"id": 1} | {f"c{n}": "".join(CHARACTERS[source]) for n, (source, _) in enumerate(chosen)}
        table.write([Winner("u", row, (1, 1, 0, "one"))])
        picked = ", ".join(f"HEX(CONVERT(c{n} USING utf8mb4))" for n in range(len(chosen)))
        assert [bytes.fromhex(value).decode() for value in table.rows(picked)[0]] == list(row.values())[1:]


FLOATS = {"id": pa.int64(), "f": pa.float32(), "d": pa.float32()}


def test_floats_of_every_exponent_arrive_bit_by_bit(server: Any) -> None:
    chance = np.random.default_rng(1)
    mantissas = np.concatenate([np.array([0, 1, 0x2AAAAA, 0x7FFFFF]), chance.integers(0, 1 << 23, 4)])
    bits = np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas.astype(np.uint32)
    values = bits.reshape(-1).view(np.float32)
    values = np.concatenate([values, -values])
    with target_table(server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, f FLOAT, d DOUBLE)", FLOATS) as table:
        rows = [{"id": n, "f": float(value), "d": float(value)} for n, value in enumerate(values)]
        table.write([Winner("u", row, (1, 1, n, "one")) for n, row in enumerate(rows)])
        arrived = np.array(table.rows("CAST(f AS DOUBLE), d"))
        for column in arrived.T:
            expected = values.astype(np.float64)
            expected += 0.0 if is_newest(server) else -0.0
            assert column.tobytes() == expected.tobytes()


def test_spaces_at_the_end_are_never_cut() -> None:
    for source in ("varchar(5)", "tinytext", "text", "json"):
        assert pairs.problem(kind(source), kind("char(255)")) == pairs.SPACES
        assert not pairs.reported(pairs.SPACES, kind("char(255)"))
    assert declaration(kind("varchar(5)", "latin1")) == "varchar(5) CHARACTER SET latin1"


def test_a_varchar_holds_an_enum_whose_longest_label_fits() -> None:
    many = "enum(" + ",".join(f"'m{n:03}'" for n in range(300)) + ")"
    assert pairs.problem(kind(many), kind("varchar(4)")) == ""
    assert pairs.problem(kind(many), kind("varchar(3)")) == pairs.SHORTER
    assert pairs.problem(kind("set('x','yy')"), kind("varchar(4)")) == ""
    assert pairs.problem(kind("set('x','yy')"), kind("varchar(3)")) == pairs.SHORTER


def test_a_value_that_a_charset_lacks_is_never_written_as_another(server: Any) -> None:
    definition = "CREATE TABLE {name} (id BIGINT PRIMARY KEY, v VARCHAR(9) CHARACTER SET latin1)"
    columns = {"id": pa.int64(), "v": pa.string()}
    with target_table(server, definition, columns) as table:
        for text in ("\U0001f600", "\u0416"):
            with pytest.raises(DataAtRisk):
                table.write([Winner("u", {"id": 1, "v": text}, (1, 1, 0, "one"))])
        assert table.rows("id") == []


def test_the_error_value_of_an_enum_is_named_as_what_it_is(server: Any) -> None:
    columns = {"id": pa.int64(), "e": pa.string()}
    with target_table(server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, e ENUM('a','b'))", columns) as table:
        with pytest.raises(DataAtRisk, match=r"error value .*VARCHAR") as caught:
            table.write([Winner("u", {"id": 7, "e": ""}, (1, 1, 0, "one"))])
        assert "key 7" in caught.value.what
    with target_table(server, "CREATE TABLE {name} (id BIGINT PRIMARY KEY, e VARCHAR(1))", columns) as table:
        table.write([Winner("u", {"id": 7, "e": ""}, (1, 1, 0, "one"))])
        assert table.rows("e") == [("",)]


@EACH_STORE
def test_the_error_value_of_an_enum_is_refused_beside_the_label_without_text(server: Any, store: str) -> None:
    """Neither in a value nor in a key is it taken for the label; a text column takes it."""
    columns = {"e": pa.string(), "f": pa.string()}
    for key, kept, op in (("e", "f", "u"), ("e", "f", "d"), ("f", "e", "u")):  # a delete needs its key alone
        definition = f"CREATE TABLE {{name}} (e ENUM('a',''), f ENUM('x','y'), PRIMARY KEY ({key}))"
        with target_table(server, definition, columns, (key,), store=store) as table:
            table.write([Winner("u", {"e": "", "f": "x"}, (1, 1, 0, "one"))])
            odd = Winner(op, {"e": "", "f": "x"}, (2, 2, 0, "one"), literal={"e": ""})
            with pytest.raises(DataAtRisk, match="error value") as caught:
                table.write([odd])
            assert caught.value.code == "target.row_error"
            assert table.write([odd], run="again", quarantine=True).quarantined == 1
            assert table.rows(f"e + 0, {kept}")[0][0] == 2
    with target_table(server, "CREATE TABLE {name} (e VARCHAR(9), f INT PRIMARY KEY)",
                      {"e": pa.string(), "f": pa.int32()}, ("f",)) as table:  # fmt: skip
        table.write([Winner("u", {"e": "", "f": 1}, (1, 1, 0, "one"), literal={"e": ""})])
        assert table.rows("e") == [("",)]
