"""Every type of MySQL and MariaDB, with its edge values, as the readers of a lake find it (docs/targets.md).

A column for each type, a row for each value: the rows are copied, inserted, updated and deleted.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc_core.model.version import VERSION_COLUMN
from examples.sandbox.sql_server import SqlServer
from tests.contract.product_source import ROOT
from tests.lab.iceberg_spark import by_spark

BOTH = MARIADB, MYSQL = ("mariadb", "mysql9")
DATABASE = "laketypes"
AS_SELECTED = object()
"""The lake has the value that SELECT shows."""
UTC = dt.UTC
LAST = "\ud7ff"
"""The character before those that are none: bounds of longer texts end with the next one."""
UUID = "123e4567-e89b-12d3-a456-426614174000"


@dataclass(frozen=True)
class Case:
    """values: SQL, and what the lake has for it. lake: the type of the column there."""

    type: str
    lake: str
    values: Mapping[str, Any]
    on: tuple[str, ...] = BOTH
    name: str = ""


CASES = (
    Case("TINYINT", "int", {"-128": -128, "127": 127}),
    Case("TINYINT(1)", "int", {"1": 1, "-5": -5}),
    Case("TINYINT UNSIGNED", "int", {"0": 0, "255": 255}),
    Case("SMALLINT", "int", {"-32768": -32768, "32767": 32767}),
    Case("SMALLINT UNSIGNED", "int", {"65535": 65535}),
    Case("MEDIUMINT", "int", {"-8388608": -8388608, "8388607": 8388607}),
    Case("MEDIUMINT UNSIGNED", "long", {"16777215": 16777215}),
    Case("INT", "int", {"-2147483648": -(1 << 31), "2147483647": (1 << 31) - 1}),
    Case("INT UNSIGNED", "long", {"0": 0, "4294967295": (1 << 32) - 1}),
    Case("BIGINT", "long", {"-9223372036854775808": -(1 << 63), "9223372036854775807": (1 << 63) - 1}),
    Case("BIGINT UNSIGNED", "decimal(20, 0)", {"0": Decimal(0), "18446744073709551615": Decimal((1 << 64) - 1)}),
    Case("DECIMAL(5,2)", "decimal(5, 2)", {"-999.99": Decimal("-999.99"), "0": Decimal("0.00")}),
    Case("DECIMAL(18,9)", "decimal(18, 9)", {"-999999999.999999999": Decimal("-999999999.999999999")}),
    Case("DECIMAL(38,10)", "decimal(38, 10)", {f"-{'9' * 28}.0000000001": Decimal(f"-{'9' * 28}.0000000001")}),
    Case("DECIMAL(38,0)", "decimal(38, 0)", {"9" * 38: Decimal("9" * 38)}),
    Case(
        "DECIMAL(65,30)", "string",
        {"-" + "9" * 35 + "." + "9" * 30: "-" + "9" * 35 + "." + "9" * 30, "0.5": "0." + "5".ljust(30, "0")},
    ),
    Case("FLOAT", "float", {"1.5": 1.5, "-3.402823466e38": -3.4028234663852886e38, "1e-40": 9.99994610111476e-41}),
    Case("DOUBLE", "double", {"0.1": 0.1, "1.7976931348623157e308": 1.7976931348623157e308, "5e-324": 5e-324}),
    Case("BIT(1)", "boolean", {"b'0'": False, "b'1'": True}),
    Case("BIT(9)", "decimal(20, 0)", {"b'100000001'": Decimal(257)}),
    Case("BIT(64)", "decimal(20, 0)", {"18446744073709551615": Decimal((1 << 64) - 1)}),
    Case(
        "DATE", "date",
        {
            "'1000-01-01'": dt.date(1000, 1, 1), "'1969-12-31'": dt.date(1969, 12, 31),
            "'9999-12-31'": dt.date(9999, 12, 31), "'0000-00-00'": None, "'2024-02-31'": None, "'2024-00-01'": None,
        },
    ),
    Case("DATETIME", "timestamp", {"'1000-01-01 00:00:00'": dt.datetime(1000, 1, 1), "'0000-00-00 00:00:00'": None}),
    Case(
        "DATETIME(6)", "timestamp",
        {
            "'1969-12-31 23:59:59.999999'": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            "'9999-12-31 23:59:59.999999'": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        },
    ),
    Case(
        "TIMESTAMP(6) NULL", "timestamptz",
        {
            "'1970-01-01 00:00:01.000001'": dt.datetime(1970, 1, 1, 0, 0, 1, 1, UTC),
            "'2038-01-19 03:14:07.999999'": dt.datetime(2038, 1, 19, 3, 14, 7, 999_999, UTC),
            "'0000-00-00 00:00:00'": None,
        },
    ),
    Case("TIME", "string", {"'-838:59:59'": "-838:59:59", "'00:00:00'": "00:00:00"}),
    Case("TIME(6)", "string", {"'-00:00:00.000001'": "-00:00:00.000001", "'100:00:00.5'": "100:00:00.500000"}),
    Case("YEAR", "int", {"1901": 1901, "2155": 2155, "0": 0}),
    Case("CHAR(5)", "string", {"'abc  '": "abc", "''": "", "'éü😀'": "éü😀"}),
    Case("VARCHAR(30)", "string", {"'abc  '": "abc  ", "'😀é'": "😀é", f"'{LAST * 20}'": LAST * 20}),
    Case("VARCHAR(20) CHARACTER SET latin1", "string", {"'Ä€'": "Ä€"}),
    Case("VARCHAR(20) CHARACTER SET utf16", "string", {"'é😀'": "é😀"}),
    Case("TINYTEXT", "string", {"'x'": "x"}),
    Case("TEXT", "string", {"'line\\n😀'": "line\n😀", "''": "", "REPEAT('é', 20000)": "é" * 20000}),
    Case("MEDIUMTEXT", "string", {"REPEAT('ab', 70000)": "ab" * 70000}),
    Case("LONGTEXT", "string", {"CHAR(0 USING utf8mb4)": "\0"}),
    Case("BINARY(5)", "binary", {"X'0102'": b"\1\2\0\0\0", "X'0000000000'": bytes(5)}),
    Case("VARBINARY(30)", "binary", {"X'00FF00'": b"\0\xff\0", "''": b"", "REPEAT(X'FF', 20)": b"\xff" * 20}),
    Case("TINYBLOB", "binary", {"X'00'": b"\0"}),
    Case("BLOB", "binary", {"X'FF00'": b"\xff\0"}),
    Case("MEDIUMBLOB", "binary", {"REPEAT(X'0102', 40000)": b"\1\2" * 40000}),
    Case("LONGBLOB", "binary", {"''": b""}),
    Case("ENUM('a','it''s','é')", "string", {"'it''s'": "it's", "'é'": "é", "'nope'": ""}),
    Case("SET('a','b','é')", "string", {"''": "", "'a,é'": "a,é"}),
    Case("JSON", "string", {"'{\"b\": [1.50, null], \"é\": \"😀\"}'": AS_SELECTED, "'\"x\"'": '"x"'}),
    Case(
        "GEOMETRY", "binary",
        {"ST_GeomFromText('POINT(1 2)')": AS_SELECTED, "ST_GeomFromText('LINESTRING(0 0,1 1)', 4326)": AS_SELECTED},
    ),
    Case("VECTOR(3)", "list<float>", {"TO_VECTOR('[1,2.5,-3e9]')": [1.0, 2.5, -3e9]}, (MYSQL,)),
    Case("UUID", "string", {f"'{UUID.upper()}'": UUID}, (MARIADB,)),
    Case("INET4", "string", {"'192.168.1.0'": "192.168.1.0"}, (MARIADB,)),
    Case("INET6", "string", {"'::ffff:10.0.0.1'": "::ffff:10.0.0.1", "'2001:db8::1'": "2001:db8::1"}, (MARIADB,)),
    Case("VARCHAR(200) COMPRESSED", "string", {"REPEAT('abc', 50)": "abc" * 50}, (MARIADB,)),
    Case("INT", "int", {"7": 7}, name="größe in cm"),
    Case("INT", "int", {"8": 8}, name="a.b"),
    Case("INT", "int", {"9": 9}, name="Select"),
    Case("VARCHAR(20)", "string", {"'x'": "x"}, name="it's a \"name\""),
)  # fmt: skip


class TypedTable:
    """A table with a column for each type that a server has, and the rows that its lake should have."""

    def __init__(self, flavor: str) -> None:
        self.cases = [case for case in CASES if flavor in case.on]
        self.names = [case.name or f"c{at:02}" for at, case in enumerate(self.cases)]
        self.rows = max(len(case.values) for case in self.cases)

    @property
    def lake(self) -> dict[str, str]:
        return {name: case.lake for name, case in zip(self.names, self.cases, strict=True)}

    @property
    def definition(self) -> str:
        columns = (f"{quoted(name)} {case.type}" for name, case in zip(self.names, self.cases, strict=True))
        return f"CREATE TABLE t (id INT PRIMARY KEY, n INT, {', '.join(columns)}) CHARACTER SET utf8mb4"

    def insert(self, at: int, id: int) -> str:
        values = [list(case.values)[at] if at < len(case.values) else "NULL" for case in self.cases]
        return f"INSERT INTO t VALUES ({id}, 0, {', '.join(values)})"

    def expected(self, at: int, id: int, n: int, shown: Mapping[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"id": id, "n": n}
        for name, case in zip(self.names, self.cases, strict=True):
            value = list(case.values.values())[at] if at < len(case.values) else None
            row[name] = shown[name] if value is AS_SELECTED else value
        return row


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class TypedLake:
    def __init__(self, lockstep: Any, server: SqlServer, flavor: str) -> None:
        self.lockstep, self.server, self.table, folder = lockstep, server, TypedTable(flavor), lockstep.directory
        self.uri = f"sqlite:///{folder}/catalog.db"
        lockstep.environ |= {"SHOP": server.url, "LAKE_CATALOG": self.uri}
        (folder / "warehouse").mkdir()
        self.warehouse = (folder / "warehouse").as_uri()
        catalog = {"type": "sql", "uri": "env:LAKE_CATALOG", "warehouse": self.warehouse}
        target = {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop", "tables": {"*": {}}}
        server.run(f"CREATE DATABASE {DATABASE}")
        self.file = lockstep.write(
            "shop", DATABASE, targets=[target], source={"start": "latest"}, snapshot={"mode": "initial"}, routes=[]
        )

    def sql(self, *statements: str) -> None:
        server = self.server.connect(DATABASE, autocommit=True, charset="utf8mb4")
        with server as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute("SET time_zone = '+00:00'")
            for statement in statements:
                cursor.execute(statement)

    def write(self) -> list[dict[str, Any]]:
        """Rows that are copied, inserted, updated and deleted; what the lake should have."""
        table, every = self.table, range(self.table.rows)
        self.sql(table.definition, *(table.insert(at, at) for at in every))
        self.lockstep("run", self.file)
        self.sql(
            *(table.insert(at, 100 + at) for at in every),
            *(table.insert(at, 200 + at) for at in every),
            "UPDATE t SET n = 1 WHERE id BETWEEN 1 AND 110",
            "DELETE FROM t WHERE id IN (0, 101, 200)",
        )
        self.lockstep("run", self.file)
        self.sql("UPDATE t SET n = 2 WHERE id IN (2, 102)")
        self.lockstep("run", self.file)
        names = [
            name for name, case in zip(table.names, table.cases, strict=True) if AS_SELECTED in case.values.values()
        ]
        selected = self.server.run(f"SELECT id, {', '.join(map(quoted, names))} FROM {DATABASE}.t")
        shown = {id: dict(zip(names, row, strict=True)) for id, *row in selected}
        ids = dict.fromkeys(every, 1) | {100 + at: 1 for at in every} | {200 + at: 0 for at in every} | {2: 2, 102: 2}
        return [table.expected(id % 100, id, n, shown[id]) for id, n in sorted(ids.items()) if id not in (0, 101, 200)]

    def loaded(self) -> Any:
        return SqlCatalog("lake", uri=self.uri, warehouse=self.warehouse).load_table("shop.t")


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        row.pop(VERSION_COLUMN)
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.fixture(params=BOTH)
def typed(request: pytest.FixtureRequest, lockstep: Any) -> TypedLake:
    return TypedLake(lockstep, request.getfixturevalue(request.param), request.param)


@pytest.mark.slow
def test_every_type_is_read_alike_by_pyiceberg_polars_and_spark(
    typed: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    expected = typed.write()
    table = typed.loaded()
    kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    assert {name: kinds[name] for name in typed.table.names} == typed.table.lake
    assert in_order(table.scan().to_arrow().to_pylist()) == expected
    assert in_order(pl.scan_iceberg(table).collect().to_dicts()) == expected
    assert in_order(by_spark(typed.lockstep.directory, [table], "SELECT * FROM lake.shop.t").to_pylist()) == expected


def test_the_document_says_the_type_of_each_column() -> None:
    section = (ROOT / "docs" / "targets.md").read_text().partition("## Types of an Iceberg mirror")[2]
    table = section.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    told = {}
    for columns, kind, _ in (line.strip("| ").split(" | ") for line in table.splitlines()):
        told |= dict.fromkeys(columns.split(", "), kind)
    for case in CASES:
        name = re.sub(r" (CHARACTER SET .*|COMPRESSED|NULL)$", "", case.type)
        digits = name.partition("(")[2].partition(",")[0]
        if name.startswith("DECIMAL"):
            name = f"DECIMAL(p,s) {'up to' if int(digits) <= 38 else 'above'} 38 digits"
        elif name.startswith("BIT"):
            name = "BIT(1)" if digits == "1)" else "BIT(n)"
        elif name.startswith("GEOMETRY"):
            name = "GEOMETRY and its kinds"
        else:
            name = re.sub(r"\(.*\)", "", name)
        assert re.sub(r"\(\d+, \d+\)$", "", told[name]) == re.sub(r"\(\d+, \d+\)$", "", case.lake) or (
            told[name] == "decimal(p, s)" and case.lake.startswith("decimal")
        ), case
