"""From definitions to SQL, without servers: what is kept, what is left out and said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.source.capture.column_rules import HASH
from cdc_core.targets.tables.definition_sql import Dialect, Origin, PlannedTable, default_literal, planned_table
from cdc_core.targets.tables.table_definition import (
    EXPRESSION,
    LITERAL,
    NOW,
    ColumnDefinition,
    Expression,
    IndexDefinition,
    IndexPart,
    TableDefinition,
)
from cdc_core.targets.tables.table_differences import Existing, differences
from cdc_core.targets.tables.target_collations import BYTES, substitute
from tests.lab.refusals import raises

OF_MYSQL = frozenset({
    "utf8mb4_bin", "utf8mb4_0900_bin", "utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_de_pb_0900_as_cs",
    "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "latin1_bin", "latin1_swedish_ci", "utf8mb3_bin", "binary",
})  # fmt: skip
OF_MARIADB = frozenset({
    "utf8mb4_bin", "utf8mb4_nopad_bin", "utf8mb4_uca1400_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_ci",
    "utf8mb4_uca1400_german2_nopad_as_cs", "utf8mb4_unicode_520_nopad_ci", "latin1_bin", "latin1_swedish_nopad_ci",
    "utf8mb4_uca1400_german2_as_cs", "latin1_nopad_bin", "utf8mb3_bin",
})  # fmt: skip
MYSQL, MARIADB = Dialect(False, (9, 7), OF_MYSQL), Dialect(True, (11, 4), OF_MARIADB)
INT = ColumnType("int")


@given(st.sampled_from(sorted(OF_MYSQL | OF_MARIADB)), st.sampled_from([OF_MYSQL, OF_MARIADB]), st.booleans())
def test_a_substitute_is_known_to_the_server_and_keys_compare_bytes(
    collation: str, known: frozenset[str], apart: bool
) -> None:
    charset, found = substitute(collation.partition("_")[0], collation, known, apart=apart)
    assert found in known
    assert found.startswith(charset)
    if collation in known:
        assert found == collation
    elif apart:
        assert found in BYTES


@pytest.mark.parametrize(
    ("collation", "known", "wanted"),
    [
        ("utf8mb4_0900_ai_ci", OF_MARIADB, "utf8mb4_uca1400_nopad_ai_ci"),
        ("utf8mb4_de_pb_0900_as_cs", OF_MARIADB, "utf8mb4_uca1400_german2_nopad_as_cs"),
        ("utf8mb4_zh_0900_as_cs", OF_MARIADB, "utf8mb4_unicode_520_nopad_ci"),
        ("utf8mb4_0900_bin", OF_MARIADB, "utf8mb4_nopad_bin"),
        ("utf8mb4_uca1400_german2_as_cs", OF_MYSQL, "utf8mb4_de_pb_0900_as_cs"),
        ("utf8mb4_uca1400_nopad_ai_ci", OF_MYSQL, "utf8mb4_0900_ai_ci"),
        ("latin1_swedish_nopad_ci", OF_MYSQL, "latin1_swedish_ci"),
        ("gb18030_chinese_ci", OF_MARIADB, "utf8mb4_uca1400_ai_ci"),
    ],
)
def test_other_columns_get_the_nearest_collation(collation: str, known: frozenset[str], wanted: str) -> None:
    assert substitute(collation.partition("_")[0], collation, known, apart=False)[1] == wanted


@pytest.mark.parametrize(
    ("value", "kind", "sql"),
    [
        ("it's\\", ColumnType("varchar", length=9), "'it\\'s\\\\'"),
        ("00ff27", ColumnType("varbinary", length=9), "X'00ff27'"),
        ("", ColumnType("varbinary", length=9), "''"),
        ("5", ColumnType("bit", length=3), "b'101'"),
        ("0", ColumnType("timestamp"), "'0000-00-00 00:00:00'"),
        ("0.000000", ColumnType("timestamp", fsp=6), "'0000-00-00 00:00:00'"),
        ("1577934245.125", ColumnType("timestamp", fsp=3), "'2020-01-02 03:04:05.125'"),
        ("-0.5", ColumnType("decimal", precision=5, scale=2), "'-0.5'"),
    ],
)
def test_a_literal_default_is_written_so_that_its_type_takes_it(value: str, kind: ColumnType, sql: str) -> None:
    assert default_literal(value, kind) == sql


def test_an_expression_that_may_have_lost_characters_is_not_exact() -> None:
    assert Expression("concat(`a``b`,'x')").exact
    assert Expression("concat(`a``b`,`C`)").columns == {"a`b", "c"}
    assert not Expression("concat(`a`,'?')").exact
    assert not Expression("concat(`a`,'é')").exact


def definition(*columns: ColumnDefinition, **options: object) -> TableDefinition:
    return TableDefinition("s", "t", columns, **options)


def origin(found: TableDefinition, key: str = "id", **literals: str) -> Origin:
    columns = tuple(
        Column(column.name, column.type, column.nullable, 1 if column.name == key else None, bool(column.generated))
        for column in found.columns
    )
    return Origin(TableSchema(found.database, found.table, columns), found, literals)


def planned(*origins: Origin, dialect: Dialect = MYSQL, key: tuple[str, ...] = ("id",)) -> PlannedTable:
    return planned_table("t", origins, key, dialect, versioned=True, alone=len(origins) == 1)


ID = ColumnDefinition("id", INT, nullable=False, counted=True)


@pytest.mark.parametrize("dialect", [MYSQL, MARIADB])
def test_what_the_server_would_do_to_rows_by_itself_is_left_out_and_said(dialect: Dialect) -> None:
    found = definition(
        ID,
        ColumnDefinition("at", ColumnType("timestamp"), nullable=False, default=NOW, refreshed=True),
        ColumnDefinition("n", INT, default=EXPRESSION, expression=Expression("nextval(`s`.`q`)")),
        checks=("c",),
        triggers=("tr",),
        foreign_keys=("fk",),
        engine="MyISAM",
        partitioned=True,
        mariadb=dialect.mariadb,
    )
    made = planned(origin(found), dialect=dialect)
    sql = made.create("d", "t")
    for word in ("AUTO_INCREMENT", "ON UPDATE", "nextval", "CHECK", "TRIGGER", "FOREIGN", "PARTITION", "MyISAM"):
        assert word not in sql
    assert "`at` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP" in sql
    notes = "\n".join(made.notes)
    for word in ("AUTO_INCREMENT", "ON UPDATE", "n has no default", "(c)", "(tr)", "(fk)", "MyISAM", "partitioned"):
        assert word in notes


def test_generated_columns_are_computed_only_by_a_server_of_the_same_kind_from_unchanged_columns() -> None:
    computed = ColumnDefinition("g", INT, generated="STORED", expression=Expression("(`n` + 1)"))
    found = definition(ID, ColumnDefinition("n", INT), computed)
    assert "GENERATED ALWAYS AS ((`n` + 1)) STORED" in planned(origin(found)).create("d", "t")
    assert "GENERATED" not in planned(origin(found), dialect=MARIADB).create("d", "t")
    whole = origin(found)
    without = replace(whole.schema, columns=tuple(column for column in whole.schema.columns if column.name != "n"))
    left = planned(replace(whole, schema=without))
    assert "GENERATED" not in left.create("d", "t")
    assert any("depends on n, which is excluded or masked" in note for note in left.notes)


def test_a_masked_column_of_the_type_of_a_hash_has_nothing_of_the_sources_definition() -> None:
    digest = ColumnDefinition(
        "digest", HASH, generated="STORED", expression=Expression("sha2(`n`,256)"), comment="of a secret"
    )
    from_it = ColumnDefinition("g", INT, generated="STORED", expression=Expression("length(`digest`)"))
    token = ColumnDefinition("token", HASH, default=LITERAL)
    prefix = IndexDefinition("i", False, (IndexPart("token", 8),))
    found = definition(ID, ColumnDefinition("n", INT), digest, from_it, token, indexes=(prefix,))
    whole = origin(found, token="secret")
    plain = planned(whole).create("d", "t")
    assert plain.count("GENERATED") == 2
    assert "(`token`(8))" in plain
    masked = planned(replace(whole, masked=frozenset({"digest", "token"}))).create("d", "t")
    assert not re.search(r"GENERATED|secret|KEY `i`", masked)
    assert masked.count("` char(64)") == 2


def test_sources_that_differ_are_refused_with_every_difference() -> None:
    other = definition(ID, ColumnDefinition("n", ColumnType("bigint")), ColumnDefinition("m", INT))
    first = definition(ID, ColumnDefinition("n", INT), ColumnDefinition("m", ColumnType("date")))
    with raises(Refused, "target.not_creatable") as caught:
        planned(origin(first), origin(other))
    assert "n is int in s.t and bigint in s.t; m is date in s.t and int in s.t" in caught.value.what


def test_a_vector_is_refused_where_the_server_has_none() -> None:
    found = origin(definition(ID, ColumnDefinition("v", ColumnType("vector", length=3))))
    with raises(Refused, "target.not_creatable"):
        planned(found, dialect=MARIADB)
    planned(found, dialect=replace(MARIADB, version=(11, 7)))


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableDefinition, dict[str, str]]:
    kinds = (
        INT, ColumnType("bigint", unsigned=True), ColumnType("decimal", precision=9, scale=2), ColumnType("date"),
        ColumnType("varchar", length=20, charset="utf8mb4", collation="utf8mb4_bin"), ColumnType("datetime", fsp=3),
    )  # fmt: skip
    columns, literals = [ID], {}
    for number in range(draw(st.integers(0, 5))):
        default = draw(st.sampled_from(["", LITERAL, NOW]))
        if default == LITERAL:
            literals[f"c{number}"] = "1"
        columns.append(
            ColumnDefinition(
                f"c{number}", draw(st.sampled_from(kinds)), draw(st.booleans()), default,
                comment=draw(st.text(max_size=5)), invisible=draw(st.booleans()),
            )
        )  # fmt: skip
    names = [column.name for column in columns]
    indexes = [
        IndexDefinition(f"i{number}", draw(st.booleans()), tuple(map(IndexPart, some)))
        for number, some in enumerate(
            draw(st.lists(st.lists(st.sampled_from(names), min_size=1, unique=True), max_size=3))
        )
    ]
    return definition(*columns, indexes=tuple(indexes)), literals


@given(tables(), st.sampled_from([MYSQL, MARIADB]))
def test_a_table_that_is_like_its_source_differs_in_nothing_that_stops_a_run(
    made: tuple[TableDefinition, dict[str, str]], dialect: Dialect
) -> None:
    found, literals = made
    plan = planned(origin(found, **literals), dialect=dialect)
    key = IndexDefinition("PRIMARY", True, (IndexPart("id"),))
    there = Existing(replace(found, indexes=(key, *found.indexes)), dict(literals))
    assert [difference for difference in differences(plan, there) if difference.stops] == []
    for column in found.columns[1:]:
        lacks = replace(
            found, columns=tuple(other for other in found.columns if other.name != column.name), indexes=(key,)
        )
        (missing,) = [difference for difference in differences(plan, Existing(lacks)) if difference.stops]
        assert missing.column == column.name
        # Rows that exist have the source's literal default, or null; changes from before the column have null.
        assert missing.safe
        assert "NOT NULL" not in missing.alter
        assert "CURRENT_TIMESTAMP" not in missing.alter
