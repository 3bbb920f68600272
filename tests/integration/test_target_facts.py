"""What a target table must be like, told before any row is written, on real servers."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core.config import MysqlTarget
from cdc_core.errors import LockstepError, Refused
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.mysql.connections import connect
from cdc_core.targets.reading.destination import (
    Destination,
    TableUse,
    TargetSurvey,
    checked_destination,
    open_destination,
    prepared_destinations,
)
from cdc_core.targets.reading.table_facts import lacking_privileges, table_facts, table_problems
from cdc_core.targets.writing.load import open_session
from cdc_core.targets.writing.prepare import is_prepared, ours_beside, prepare
from cdc_core.targets.writing.versions import versions_of
from tests.integration.one_server import EACH_STORE
from tests.lab.databases import own_database
from tests.lab.refusals import raises
from tests.lab.target_rows import Table, Winner, opened_destination, require_table, target_table

SOURCE = {"id": "bigint", "code": "varchar(20)", "n": "int", "at": "datetime(6)", "price": "decimal(10,2)"}
SCHEMA = TableSchema(
    "shop",
    "t",
    tuple(
        Column(
            name,
            parse_column_type(declared, charset="utf8mb4" if name == "code" else ""),
            nullable=name != "id",
            key_part=1 if name == "id" else None,
        )
        for name, declared in SOURCE.items()
    ),
)


def judged(table: Table, **changed: str | None) -> None:
    """require_table on a table with these columns in place of the source's; None leaves one out."""
    columns = {name: declared for name, declared in (SOURCE | changed).items() if declared}
    made = ", ".join(f"{name} {declared}" for name, declared in columns.items())
    database = table.facts.database
    table.query(f"DROP TABLE IF EXISTS {database}.judged")
    table.query(f"CREATE TABLE {database}.judged ({made}, PRIMARY KEY (id))")
    facts = table_facts(table.connection, database, ["judged"])["judged"]
    require_table(facts, SCHEMA, ["id"], name=facts.name)


REFUSED: list[tuple[dict[str, str | None], str]] = [
    ({"n": "smallint"}, "smaller range"),
    ({"n": "int unsigned"}, "negative"),
    ({"code": "varchar(19)"}, "shorter"),
    ({"at": "datetime(3)"}, "fractional"),
    ({"at": "timestamp(6) NULL"}, "smaller range"),
    ({"price": "decimal(10,1)"}, "digits"),
    ({"n": "varchar(20)"}, "differ"),
    ({"n": None}, "missing"),
    ({"more": "int NOT NULL"}, "without a default"),
]


def test_a_table_that_cannot_take_every_row_is_refused_with_the_statement_that_mends_it(server: Any) -> None:
    with target_table(server) as table:
        for changed, word in REFUSED:
            with raises(Refused, "target.definition", match=word) as caught:
                judged(table, **changed)
            assert next(iter(changed)) in caught.value.what
            assert caught.value.remedy
        wider = {"n": "bigint", "code": "text", "price": "decimal(12,3)"}
        judged(table, **wider, own="varchar(9) NULL", stamp="int NOT NULL DEFAULT 7")


REKEYED = {
    "id BIGINT PRIMARY KEY, n INT": "DROP PRIMARY KEY, ADD PRIMARY KEY (`n`)",
    "id BIGINT NOT NULL, n INT, old INT PRIMARY KEY": "ADD PRIMARY KEY (`n`), MODIFY `old` int(11) NULL",
    "id BIGINT PRIMARY KEY": "TRUNCATE TABLE",
    "id BIGINT, n INT NOT NULL, own INT AUTO_INCREMENT PRIMARY KEY": "ADD UNIQUE KEY (`n`)",
    "id BIGINT, n INT NOT NULL": "ADD UNIQUE KEY (`n`)",
}


def test_a_table_gets_the_new_key_of_its_source_by_the_statements_of_the_error(server: Any) -> None:
    columns = (Column("id", ColumnType("bigint")), Column("n", ColumnType("int"), False, 1))
    wanted = TableSchema("shop", "keyed", columns)
    with own_database(server) as database, server.connect(database, autocommit=True) as connection:

        def problems() -> list[LockstepError]:
            facts = table_facts(connection, database, ["keyed"])
            return table_problems(facts["keyed"], wanted, wanted.key, name=f"{database}.keyed")

        with connection.cursor() as cursor:
            for shape, remedy in REKEYED.items():
                cursor.execute("DROP TABLE IF EXISTS keyed")
                cursor.execute(f"CREATE TABLE keyed ({shape})")
                first, *others = problems()
                assert first.code == "target.definition"
                assert remedy.replace("int(11)", "int") in first.remedy.replace("int(11)", "int")
                for problem in (first, *others):
                    for statement in re.findall(r"(?:ALTER|TRUNCATE) TABLE .*?(?=;|$)", problem.remedy):
                        cursor.execute(statement)
                assert problems() == [], shape


def test_columns_may_stand_in_another_order(server: Any) -> None:
    definition = "CREATE TABLE {name} (own INT NULL, n INT, code VARCHAR(20), id BIGINT PRIMARY KEY)"
    with target_table(server, definition) as table:
        for n in (1, 2):
            table.write([Winner("u", {"id": 4, "code": "c", "n": n}, (n, n, 0, "one"))])
        assert table.query(f"SELECT * FROM {table.facts.name}") == [(None, 2, "c", 4)]


def test_a_survey_asks_each_database_once_and_judges_each_table_as_if_it_were_asked_alone(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good tables, one that lacks a column, one of an engine that cannot roll back, and one that is not there."""
    columns = ", ".join(f"{name} {declared}" for name, declared in SOURCE.items())
    kinds = ["", "", "", " ENGINE=MyISAM", " lacking"]
    asked: list[str] = []
    execute = pymysql.cursors.Cursor.execute

    def counted(cursor: Any, sql: str, arguments: Any = None) -> Any:
        if "information_schema" in sql:
            asked.append(sql)
        return execute(cursor, sql, arguments)

    with target_table(server, f"CREATE TABLE {{name}} ({columns}, PRIMARY KEY (id))") as table:
        database = table.facts.database
        with table.connection.cursor() as cursor:
            for number, kind in enumerate(kinds):
                shown = columns.replace(", n int", "") if kind == " lacking" else columns
                cursor.execute(
                    f"CREATE TABLE {database}.t{number} ({shown}, PRIMARY KEY (id)){kind.replace(' lacking', '')}"
                )
        monkeypatch.setenv("TARGET_URL", server.url)
        target = MysqlTarget.model_validate(
            {
                "name": "copy",
                "connections": ["env:TARGET_URL"],
                "tables": {"*": {"database": database, "table": "{table}"}},
            }
        )
        names = [f"shop.t{number}" for number in range(len(kinds) + 1)]

        def judge(name: str, survey: TargetSurvey | None) -> Any:
            try:
                if survey is None:
                    return open_destination(target, name, [SCHEMA])
                return checked_destination(survey, name, [SCHEMA], TableUse())
            except LockstepError as error:
                return str(error)

        monkeypatch.setattr(pymysql.cursors.Cursor, "execute", counted)
        alone = [judge(name, None) for name in names]
        before = len(asked)
        with TargetSurvey(target, names) as survey:
            together = [judge(name, survey) for name in names]
    assert together == alone
    assert [type(answer).__name__ for answer in alone] == ["Destination"] * 3 + ["str"] * 3
    assert [code in text for code, text in zip(("engine", "column", "table"), together[3:], strict=True)] == [True] * 3
    assert len(asked) - before == before / len(names)


def test_a_freshness_column_is_found_in_any_letter_case(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    columns = ", ".join(f"{name} {declared}" for name, declared in SOURCE.items())
    monkeypatch.setenv("TARGET_URL", server.url)
    with target_table(server, f"CREATE TABLE {{name}} ({columns}, PRIMARY KEY (id))") as table:
        rules = {"t": {"database": table.facts.database, "table": "t", "freshness": "N"}}
        target = MysqlTarget.model_validate({"name": "copy", "connections": ["env:TARGET_URL"], "tables": rules})
        destination = opened_destination(target, "t", [SCHEMA])
        (shard,) = destination.shards
        table.write([Winner("u", {"id": 1, "code": "a", "n": 2, "at": None, "price": None}, (1, 1, 0, "one"))])
        rows = pa.record_batch({"id": [1], "n": pa.array([3], pa.int32())})
        rows = rows.append_column("_cdc_op", pa.array(["u"]))
        for name, value in (("_cdc_seq", 2), ("_cdc_row", 0)):
            rows = rows.append_column(name, pa.array([value], pa.int64()))
        rows = rows.append_column("_cdc_ts", pa.array([5], pa.timestamp("us", tz="UTC")))
        rows = rows.append_column("_cdc_source", pa.array(["one"]))
        with open_session(shard.server, shard.facts.database, where="test") as session:
            (held,) = versions_of(
                session, shard.facts, rows, key=destination.key, freshness=destination.rule.freshness, scratch=tmp_path
            )
        assert held.fresher == 1


def test_each_privilege_on_the_database_that_is_lacking_is_named(server: Any) -> None:
    needed = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "CREATE TEMPORARY TABLES")
    with target_table(server) as table, server.connect(autocommit=True) as admin, admin.cursor() as cursor:
        database = table.facts.database
        cursor.execute("CREATE USER `g`@`%` IDENTIFIED BY 'x'")
        try:
            cursor.execute(f"GRANT ALL ON {database}.t TO `g`@`%`")  # which does not count
            for lacking in (None, *needed):
                cursor.execute(f"GRANT {', '.join(needed)} ON {database}.* TO `g`@`%`")
                if lacking is not None:
                    cursor.execute(f"REVOKE {lacking} ON {database}.* FROM `g`@`%`")
                with connect(replace(table.server, user="g", password="x"), where="test") as asking:
                    assert lacking_privileges(asking, database, where="t") == (() if lacking is None else (lacking,))
        finally:
            cursor.execute("DROP USER `g`@`%`")


@EACH_STORE
def test_a_table_counts_as_prepared_only_with_everything_that_lockstep_needs_there(server: Any, store: str) -> None:
    with target_table(server, store=store) as table:
        database = table.facts.database

        def ours() -> Any:
            return ours_beside(table.connection, database, ["t"])

        assert is_prepared(table.facts, ours())
        assert len(ours()) == (5 if store == "row" else 6)
        for name in ours():
            table.query(f"RENAME TABLE {database}.{name} TO {database}.away")
            assert not is_prepared(table.facts, ours())
            table.query(f"RENAME TABLE {database}.away TO {database}.{name}")
        table.query(f"ALTER TABLE {database}.t MODIFY id INT NOT NULL")
        facts = table_facts(table.connection, database, ["t"])["t"]
        altered = replace(facts, key=table.facts.key, beside=table.facts.beside)
        assert not is_prepared(altered, ours())
        prepare(table.connection, altered)
        assert is_prepared(altered, ours())
        if store == "row":
            table.query(f"ALTER TABLE {database}.t DROP COLUMN _cdc_version")
            facts = table_facts(table.connection, database, ["t"])["t"]
            assert not is_prepared(replace(facts, key=table.facts.key), ours())


@EACH_STORE
def test_tables_of_a_run_are_prepared_side_by_side_whatever_another_run_adds_meanwhile(
    server: Any, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(11)]
    monkeypatch.setenv("T", server.url)
    with target_table(server) as table:
        database = table.facts.database
        for name in names:
            table.query(f"CREATE TABLE {database}.{name} (id BIGINT PRIMARY KEY, n INT)")
        rule = {"database": database, "guard": {"store": store}}
        target = MysqlTarget.model_validate(
            {"name": "t", "connections": ["env:T"], "tables": dict.fromkeys(names, rule)}
        )
        columns = tuple(column for column in SCHEMA.columns if column.name in ("id", "n"))

        def prepared() -> list[Destination]:
            with TargetSurvey(target, names) as survey:
                checked = [
                    checked_destination(survey, name, [replace(SCHEMA, table=name, columns=columns)], TableUse())
                    for name in names
                ]
                both.wait(60)  # both runs have found that everything is lacking
                return prepared_destinations(survey, checked)

        both = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            runs = [future.result() for future in [pool.submit(prepared) for _ in range(2)]]
        assert runs[0] == runs[1]
        assert [destination.logical for destination in runs[0]] == names
        ours = ours_beside(table.connection, database, names)
        for destination in runs[0]:
            (shard,) = destination.shards
            assert is_prepared(shard.facts, ours)
            assert shard.facts.versioned == (store == "row")
            facts = table_facts(table.connection, database, [destination.logical])[destination.logical]
            assert shard.facts == replace(facts, key=("id",), beside=store == "table")
