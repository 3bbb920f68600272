"""Names of tables in statements: in each client character set of a real server, in other letters, of any keyword."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from cdc_core.binlog.charsets import decode as decoded
from cdc_core.binlog.compressed import plain
from cdc_core.binlog.event_headers import EventType, parse_query
from cdc_core.config import CaptureRules, Columns
from cdc_core.errors import DataAtRisk
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.source.capture import Capture
from cdc_core.source.host.server_facts import query
from cdc_core.source.sql.client_text import lower_cased
from cdc_core.source.sql.statement_classes import Statement, classify
from cdc_core.source.wire.log_reader import EndOfLog, LogReader
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.conftest import set_up
from tests.lab.origin import Origin, own_origin, read_to, rows_in
from tests.lab.refusals import raises
from tests.lab.shell import export


def statements(origin: Origin, start: Checkpoint, *, lower_case: bool = False) -> Iterator[Statement]:
    """All that stand in the log from a place to its end, as they are classified."""
    with closing(LogReader(origin.address(), start.position, origin.source())) as reader:
        while True:
            try:
                events = list(reader.events(0.1))
            except EndOfLog:
                return
            for event in events:
                if event.start >= 0 and event.header.type in (EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED):
                    said = parse_query(plain(event))
                    yield classify(
                        said.sql, said.database, client_collation=said.client_collation, sql_mode=said.sql_mode,
                        lower_case=lower_case,
                    )  # fmt: skip


def client_charsets(origin: Origin) -> list[str]:
    found = []
    with origin.session() as run:
        for (charset,) in run("SELECT CHARACTER_SET_NAME FROM INFORMATION_SCHEMA.CHARACTER_SETS ORDER BY 1"):
            try:
                run(f"SET NAMES {charset}")
            except pymysql.err.MySQLError:
                continue
            found.append(str(charset))
    return found


def letters(charset: str) -> dict[str, bytes]:
    """Letters beyond ASCII of a character set with their bytes; a backslash is the second one of some."""
    if charset in ("utf8mb3", "utf8mb4", "binary"):
        return {letter: letter.encode() for letter in "äßЖ表İⱥ"}
    found: dict[str, bytes] = {}
    codes = [bytes([byte]) for byte in range(128, 256)]
    if charset in ("sjis", "cp932"):  # whose single bytes are no letters outside quotes
        codes = [bytes([one, two]) for one in range(0x89, 0x98) for two in (0x40, 0x5C, 0x7E, 0xA1, 0xD5)]
    if decoded(b"\xb0\xa1", charset) is not None and decoded(b"\xb0", charset) is None:
        codes = [bytes([one, two]) for one in range(0xB0, 0xF0) for two in (0x40, 0x5C, 0x7E, 0xA1, 0xD5)]
    for code in codes:
        text = decoded(code, charset)
        if text is not None and len(text) == 1 and text.isalpha() and not text.isascii():
            found.setdefault(text, code)
    return found


def written(origin: Origin, charset: str, chance: random.Random, *, quoted: bool) -> dict[str, bytes]:
    """Some of the letters: those that this server takes in a name, in quotes or outside them."""
    known = letters(charset)
    found: dict[str, bytes] = {}
    with origin.sql.connect(origin.name) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET NAMES {charset}")
        cursor.execute("SET character_set_results = utf8mb4")
        for letter in chance.sample(sorted(known), min(len(known), 60)):
            raw = known[letter]
            try:
                cursor.execute(b"SELECT 1 AS " + (b"`t" + raw + b"u`" if quoted else b"t" + raw + b"u"))
            except pymysql.err.MySQLError:
                continue
            if cursor.description[0][0] == f"t{letter}u":
                found[letter] = raw
            if len(found) == 40:
                break
    return found


def test_a_name_is_read_in_every_client_character_set(origin: Origin) -> None:
    chance = random.Random(3)
    start = origin.end()
    expected: list[tuple[str, bool, str]] = []
    charsets = set(client_charsets(origin)) - {"swe7"}  # whose names nobody reads
    for charset in sorted(charsets):
        for quoted in (True, False):
            known = written(origin, charset, chance, quoted=quoted)
            if not known:
                continue
            name = "t" + "".join(known)
            raw = b"t" + b"".join(known.values())
            origin.execute(f"CREATE TABLE IF NOT EXISTS `{name}` (id INT)")
            with origin.sql.connect(origin.name, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET NAMES {charset}")
                cursor.execute(b"TRUNCATE /* ' */ TABLE " + (b"`" + raw + b"`" if quoted else raw))
                expected.append((charset, quoted, name))
            origin.execute(f"DROP TABLE `{name}`")
    found = [statement.tables for statement in statements(origin, start) if statement.verb == "TRUNCATE"]
    assert len(found) == len(expected)
    quoted_in = {charset for charset, quoted, _ in expected if quoted}
    assert quoted_in == charsets - {"ascii"}
    assert len(expected) - len(quoted_in) >= 25
    wrong = [
        (*asked, tables) for asked, tables in zip(expected, found, strict=True) if tables != ((origin.name, asked[2]),)
    ]
    assert not wrong, wrong


def test_a_backquote_inside_a_character_hides_nothing(origin: Origin) -> None:
    """MariaDB 11.4 reads `t癭u` in GBK, where a byte of the second letter is a backquote, as `t癭`; MySQL as it is."""
    origin.execute("CREATE TABLE `t癭` (id INT PRIMARY KEY)", "CREATE TABLE `t癭u` (id INT PRIMARY KEY)")
    origin.execute("INSERT INTO `t癭` VALUES (1)", "INSERT INTO `t癭u` VALUES (1)")
    start = origin.end()
    origin.sql.run("SET NAMES gbk", b"TRUNCATE TABLE `t\xb0\x60u`", database=origin.name)
    (emptied,) = (table for table in ("t癭", "t癭u") if not origin.rows(table))
    with pytest.raises(DataAtRisk):
        origin.drain(start, include=[rf"{origin.name}\.{emptied}"])


@pytest.mark.parametrize("charset", ["koi8r", "gbk", "swe7"])
def test_ddl_in_another_character_set_stops_as_in_any_other(origin: Origin, charset: str) -> None:
    if charset == "swe7":
        name, raw = "t[]{}^~", b"t[]{}^~"  # outside quotes it is not converted
    else:
        known = written(origin, charset, random.Random(4), quoted=False)
        name = "t" + "".join(sorted(known)[:12])
        raw = b"t" + b"".join(known[letter] for letter in name[1:])
    origin.execute(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)", f"INSERT INTO `{name}` VALUES (1)")
    start = origin.end()
    origin.sql.run(f"SET NAMES {charset}", b"TRUNCATE TABLE " + raw, database=origin.name)
    with raises(DataAtRisk, "source.unlogged_change") as raised:
        origin.drain(start)
    named = "any captured table" if charset == "swe7" else f"{origin.name}.{name}"
    assert f"rows of {named} " in raised.value.what


def keywords(origin: Origin) -> list[str]:
    words = {str(row[0]).lower() for row in query(origin.control, "SELECT WORD FROM INFORMATION_SCHEMA.KEYWORDS")}
    return sorted(word for word in words if re.fullmatch(r"[a-z_0-9]+", word))


def test_a_column_of_any_name_is_added_with_or_without_a_value_as_the_rows_show(origin: Origin) -> None:
    """Every keyword that may name a column without quotes does, in each of the forms of ADD and DROP."""
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    start = origin.end()
    wanted: list[tuple[str, bool, bool]] = []  # the clause, whether rows show a value in it, whether it is judged so
    with origin.session() as run:
        for number, word in enumerate(keywords(origin)):
            value = ("INT NOT NULL DEFAULT 5", "INT DEFAULT (5)", "INT(11) NOT NULL")[number % 3]
            clauses = [f"ADD {word} {value}", f"DROP {word}", f"ADD COLUMN {word} INT NULL"]
            try:
                run(f"ALTER TABLE t {clauses[0]}")
            except pymysql.err.MySQLError:
                continue  # reserved
            shown = [run(f"SELECT `{word}` IS NOT NULL FROM t")[0][0] == 1, False]
            try:
                run(f"ALTER TABLE t {clauses[1]}")
            except pymysql.err.MySQLError:  # DROP SYSTEM begins another clause on MariaDB
                clauses[1] = f"DROP `{word}`"
                run(f"ALTER TABLE t {clauses[1]}")
            if number % 7 == 0 or word in ("vector", "system", "period", "partition", "first", "after", "sequence"):
                run(f"ALTER TABLE t {clauses[2]}")
                shown.append(run(f"SELECT `{word}` IS NOT NULL FROM t")[0][0] == 1)
                clauses.append(f"DROP COLUMN `{word}`")
                run(f"ALTER TABLE t {clauses[3]}")
                shown.append(False)
            wanted += [(clause, value_shown, False) for clause, value_shown in zip(clauses, shown, strict=False)]
    found = [bool(statement.unlogged) for statement in statements(origin, start) if statement.verb == "ALTER TABLE"]
    assert len(found) == len(wanted) > 700
    assert [(clause, judged) for (clause, _, _), judged in zip(wanted, found, strict=True)] == [
        (clause, shown) for clause, shown, _ in wanted
    ]


def test_letters_are_lowered_as_the_servers_lower_them(origin: Origin) -> None:
    points = [point for point in range(0x21, 0x10000) if not 0xD800 <= point < 0xE000]
    wrong = []
    for at in range(0, len(points), 3000):
        part = points[at : at + 3000]
        asked = ", ".join(
            f"HEX(CONVERT(LOWER(CONVERT(_ucs2 X'{point:04X}' USING utf8mb3) COLLATE utf8mb3_general_ci) USING ucs2))"
            for point in part
        )
        (row,) = query(origin.control, f"SELECT {asked}")
        lowered = [bytes.fromhex(value.decode() if isinstance(value, bytes) else value) for value in row]
        wrong += [
            hex(p) for p, low in zip(part, lowered, strict=True) if lower_cased(chr(p)) != low.decode("utf-16-be")
        ]
    assert not wrong


@pytest.fixture(scope="module", params=["mariadb", "mysql9"])
def caseless(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server whose names of tables have no case."""
    if request.param == "mariadb":
        kind: Any = MariaDb
    else:
        from examples.sandbox.setup_mysql import MYSQL

        set_up(MYSQL)
        kind = MySql
    with kind.start(server_id=8, options={"lower-case-table-names": "1"}) as server:
        yield server


@pytest.fixture
def caseless_origin(caseless: Any) -> Iterator[Origin]:
    with own_origin(caseless) as origin:
        origin.execute("CREATE TABLE tä (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO tä VALUES (1, 1, 1)")
        yield origin


@pytest.mark.parametrize(
    "sql",
    ["TRUNCATE TABLE {d}.TÄ", "TRUNCATE Tä", "ALTER TABLE {d}.tÄ ADD n INT DEFAULT 5", "RENAME TABLE TÄ TO U",
     "CREATE OR REPLACE TABLE TÄ (id INT PRIMARY KEY)", "ALTER TABLE {d}.TÄ DROP PRIMARY KEY"],
)  # fmt: skip
def test_ddl_in_other_letters_is_seen(caseless_origin: Origin, sql: str) -> None:
    origin = caseless_origin
    if not origin.mariadb and "REPLACE" in sql:
        sql = "TRUNCATE TABLE {d}.`TÄ`"
    start = origin.end()
    origin.sql.run(sql.format(d=origin.name.upper()), database=origin.name.upper())
    with raises(DataAtRisk, "source.unlogged_change") as raised:
        origin.drain(start)
    assert f"{origin.name}.tä" in raised.value.what


def test_a_definition_in_other_letters_ends_what_was_known_without_names_in_the_log(caseless_origin: Origin) -> None:
    origin = caseless_origin
    with origin.session() as run:
        run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        start = origin.end()
        with origin.stream(start, on_unlogged_change="record") as stream:
            origin.execute("INSERT INTO tä VALUES (2, 20, 200)")
            blocks = read_to(stream, origin.end().position)
            origin.execute(f"ALTER TABLE {origin.name.upper()}.TÄ MODIFY a INT AFTER b")
            blocks += read_to(stream, origin.end().position)
            origin.execute("INSERT INTO TÄ (id, a, b) VALUES (3, 10, 100)")
            blocks += read_to(stream, origin.end().position)
    finally:
        origin.execute("SET GLOBAL binlog_row_metadata = FULL")
    rows = rows_in(blocks)
    assert [(row["id"], row["a"], row["b"]) for row in rows] == [(2, 20, 200), (3, 10, 100)]


def test_patterns_have_no_case_where_the_servers_names_have_none() -> None:
    tables = CaptureRules(include=(r"Shop\.Orders.*",), exclude=(r"shop\.orders_OLD",))
    exact, lowered = Capture(tables), Capture(tables, lower_case=True)
    assert not exact.captures("shop", "orders")
    assert lowered.captures("shop", "orders")
    assert not lowered.captures("shop", "orders_old")


def test_a_masked_column_is_masked_in_whatever_letters_the_pattern_is() -> None:
    columns = Columns(mask=(r"Shop\.User\.email",), salt="env:SALT")
    text = parse_column_type("varchar(9)", charset="utf8mb4", collation="utf8mb4_bin")
    schema = TableSchema("shop", "user", (Column("email", text, nullable=True, key_part=None, generated=False),))
    export({"SALT": "x"})
    capture = Capture(CaptureRules(include=(".*",), columns=columns), lower_case=True)
    assert capture.shape(schema).column("email").type.length == 64
