"""Tables of a target that are made from the source's definitions, on each pair of kinds of servers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core.config import Pipeline
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.schema import TableSchema, parse_column_type
from cdc_core.model.staged_columns import LITERAL
from cdc_core.mysql import connections
from cdc_core.operations.target_tables import create, source_tables
from cdc_core.operations.verify.ranges import ordered_alike
from cdc_core.results import TableReader
from cdc_core.source.capture.column_rules import HASH
from cdc_core.targets.reading.destination import TableUse, open_destination
from cdc_core.targets.tables.make_tables import Actions, MadeTable
from cdc_core.targets.tables.table_definition import read_definitions
from cdc_core.targets.tables.target_collations import BYTES
from cdc_core.targets.tables.target_keys import coarser, coarser_columns
from cdc_core.targets.writing.load import LoadFile
from cdc_core.targets.writing.row_writer import write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from examples.sandbox.mariadb import MariaDb
from tests.integration.test_binlog_types import CASES, MARIADB, MYSQL, Case
from tests.lab.databases import drop_database, own_database
from tests.lab.pipeline_file import NOWHERE, made_pipeline
from tests.lab.refusals import raises
from tests.lab.shell import export
from tests.lab.target_rows import opened_destination
from tests.unit.binlog.reading import known_schema

MORE = ("mysql9 mariadb", "mariadb mariadb", "mysql9 mysql9")
PAIRS = ("mariadb mysql9", MORE[0], *(pytest.param(case, marks=pytest.mark.matrix) for case in MORE[1:]))
"""Source and target. A server may be both: the tables are in different databases."""


@dataclass(frozen=True)
class Pair:
    """A database on a source, and another on the target, which does not exist."""

    source: Any
    target: Any
    database: str
    made: str

    def pipeline(self, *, tables: str = "'*': {database: MADE}", routes: str = "[]", rules: str = "") -> Pipeline:
        targets = f"[{{name: copy, connections: ['env:TARGET'], tables: {{{tables.replace('MADE', self.made)}}}}}]"
        return made_pipeline(NOWHERE, self.database, tables=rules, routes=routes, targets=targets)

    def create(self, pipeline: Pipeline, actions: Actions | None = None) -> dict[str, MadeTable]:
        results = create(pipeline, pipeline.targets[0], source_tables(pipeline), actions or Actions())
        return {result.name: result for result in results}

    def on_source(self, *statements: str, **settings: str) -> None:
        self.source.run(*statements, database=self.database)

    def on_target(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.target.run(*statements)


@contextmanager
def pair_of(source: Any, target: Any) -> Iterator[Pair]:
    target.run("SET GLOBAL local_infile = ON")
    export({"SOURCE": source.url, "TARGET": target.url, "SALT": "salt"})
    with own_database(source) as name:
        try:
            yield Pair(source, target, name, f"{name}_made")
        finally:
            drop_database(target, f"{name}_made")


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    source, target = request.param.split()
    with pair_of(request.getfixturevalue(source), request.getfixturevalue(target)) as made:
        yield made


@pytest.fixture(params=(PAIRS[0], *(pytest.param(case, marks=pytest.mark.matrix) for case in MORE)))
def any_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """For what hardly depends on the kinds of the servers."""
    source, target = request.param.split()
    with pair_of(request.getfixturevalue(source), request.getfixturevalue(target)) as made:
        yield made


def flavor(server: Any) -> str:
    return MARIADB if server.mariadb else MYSQL


def opened(server: Any) -> connections.SafeConnection:
    return connections.connect(connections.parse_url(server.url, where="test"), where="test")


def rows_of(server: Any, schema: TableSchema, tail: str = "ORDER BY id") -> pa.RecordBatch:
    with opened(server) as connection:
        reader = TableReader(connection, schema)
        batches = list(reader.batches(f"FROM `{schema.database}`.`{schema.table}` {tail}"))
        return pa.Table.from_batches(batches, reader.arrow).combine_chunks().to_batches()[0]


def write(pair: Pair, pipeline: Pipeline, schema: TableSchema, rows: pa.RecordBatch) -> Any:
    """The rows of the source, written as a run writes them; the destination."""
    destination = opened_destination(pipeline.targets[0], schema.name, [schema])
    (shard,) = destination.shards
    count = rows.num_rows
    notes = {
        "_cdc_op": pa.array(["u"] * count),
        "_cdc_ts": pa.array([1] * count, pa.timestamp("us", tz="UTC")),
        "_cdc_seq": pa.array([1] * count, pa.int64()),
        "_cdc_row": pa.array(range(count), pa.int64()),
        "_cdc_source": pa.array(["one"] * count),
        "_cdc_absent": pa.nulls(count, pa.string()),
    }
    columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | notes
    with tempfile.TemporaryDirectory() as folder, LoadFile(Path(folder), destination.layout_of(shard)) as file:
        file.add(pa.record_batch(columns))
        done = write_shard(shard.server, ShardWrite("run", schema.name, shard.facts, shard.table.placement), file)
    assert done.counts.written == count
    return destination


COLUMNS = 12
"""Cases that share a table: fewer tables, so that all types fit into the ordinary run."""


def fill(pair: Pair) -> list[Sequence[Case]]:
    """Tables c0, c1, ... of the source with the cases as their columns; rows combine the values of all columns."""
    vectors = flavor(pair.target) == MYSQL
    with pair.source.connect(pair.database, autocommit=True, charset="utf8mb4") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT VERSION()")
        version = tuple(int(part) for part in cursor.fetchone()[0].split("-")[0].split("."))
        cases = [
            case for case in CASES
            if flavor(pair.source) in case.on and case.since <= version and not case.globals
            and (vectors or "VECTOR" not in case.type) and "'nope'" not in case.values  # no write takes an error value
        ]  # fmt: skip
        groups = [cases[at : at + COLUMNS] for at in range(0, len(cases), COLUMNS)]
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for number, group in enumerate(groups):
            columns = ", ".join(f"v{at} {case.type}" for at, case in enumerate(group))
            cursor.execute(f"CREATE TABLE c{number} (id INT PRIMARY KEY AUTO_INCREMENT, {columns})")
            for row in range(max(len(case.values) for case in group)):
                values = ", ".join(case.values[row % len(case.values)] for case in group)
                cursor.execute(f"INSERT IGNORE INTO c{number} VALUES ({row + 1}, {values})")
    return groups


def test_a_created_table_passes_the_check_and_takes_the_extreme_values_of_every_type(pair: Pair) -> None:
    groups = fill(pair)
    pipeline = pair.pipeline()
    made = pair.create(pipeline)
    assert {name: table.state for name, table in made.items()} == {
        f"{pair.made}.c{number}": "created" for number in range(len(groups))
    }
    wrong = []
    for number, group in enumerate(groups):
        schema = known_schema(pair.source, pair.database, f"c{number}")
        there = rows_of(pair.source, schema)
        destination = write(pair, pipeline, schema, there)
        (shard,) = destination.shards
        assert coarser_columns(shard.facts, [schema]) == ()
        copied = rows_of(pair.target, known_schema(pair.target, pair.made, f"c{number}"))
        for name in (*(f"v{at}" for at in range(len(group))), LITERAL):
            theirs, ours = there.column(name).to_pylist(), copied.column(name).to_pylist()
            if theirs != ours:
                wrong.append((name, group[int(name[1:])].type if name[1:].isdigit() else "", theirs, ours))
    assert wrong == []
    assert all(table.differences == () for table in pair.create(pipeline).values())


RICH = (
    "CREATE TABLE rich (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, a INT NOT NULL DEFAULT 5 COMMENT 'it''s; \\\\n', "
    "s VARCHAR(20) CHARACTER SET latin1 DEFAULT 'a''b\\\\c\\n?', em VARCHAR(20) DEFAULT '\U0001f600', "
    "b BIT(3) DEFAULT b'101', "
    "vb VARBINARY(4) DEFAULT 0x00ff3f, d DECIMAL(5,2) DEFAULT 1.5, fl FLOAT DEFAULT 0.1, "
    "ts TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), "
    "t2 TIMESTAMP NOT NULL DEFAULT '2020-01-02 03:04:05', e ENUM('a','b''x') DEFAULT 'b''x', "
    "z INT(5) ZEROFILL DEFAULT 7, tx TEXT, n INT, dt DATE DEFAULT '2020-01-01', u VARCHAR(9) NOT NULL, "
    "p POINT NOT NULL, UNIQUE KEY u (u), KEY k (s(5), a DESC), FULLTEXT KEY f (tx), SPATIAL KEY sp (p), "
    "g INT AS (a + 1) STORED, gv VARCHAR(50) AS (CONCAT(s, 'x\\'')) VIRTUAL, x VARCHAR(36) DEFAULT (UUID()), "
    "KEY kg (g), CONSTRAINT ck CHECK (a > 1), inv INT {invisible}) COMMENT 'rich'"
)  # fmt: skip


def rich(pair: Pair) -> None:
    invisible = "INVISIBLE DEFAULT 3" if flavor(pair.source) == MARIADB else "DEFAULT 3 INVISIBLE"
    pair.on_source(
        "SET time_zone = '+00:00'",
        RICH.format(invisible=invisible),
        "CREATE TABLE child (id INT PRIMARY KEY, rich_id INT UNSIGNED, FOREIGN KEY fk (rich_id) REFERENCES rich (id))",
        "CREATE TRIGGER t BEFORE INSERT ON child FOR EACH ROW SET NEW.id = NEW.id + 1",
        "CREATE TABLE parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
    )


def test_defaults_keys_and_comments_are_those_of_the_source_and_the_rest_is_said(pair: Pair) -> None:
    rich(pair)
    same = flavor(pair.source) == flavor(pair.target)
    made = pair.create(pair.pipeline())
    assert {name.partition(".")[2]: table.state for name, table in made.items()} == dict.fromkeys(
        ("rich", "child", "parts"), "created"
    )
    notes = "\n".join(made[f"{pair.made}.rich"].notes)
    for said in ("id is not AUTO_INCREMENT", "ts has no ON UPDATE", "CHECK constraints (ck)"):
        assert said in notes
    assert "foreign keys (" in str(made[f"{pair.made}.child"].notes)
    assert "triggers (t)" in str(made[f"{pair.made}.child"].notes)
    assert "not partitioned" in made[f"{pair.made}.parts"].notes
    with opened(pair.target) as connection:
        found = read_definitions(connection, pair.made, ["rich"])["rich"]
    with opened(pair.source) as connection:
        theirs = read_definitions(connection, pair.database, ["rich"])["rich"]
    captured = known_schema(pair.source, pair.database, "rich").columns
    left_out = set() if same else {column.name for column in captured if not column.logged}
    assert [column.name for column in found.columns][:-1] == [
        column.name for column in theirs.columns if column.name not in left_out
    ]
    for name in {"g", "gv"} - left_out:
        assert bool(found.by_name[name].generated) == same
        assert found.by_name[name].type.base == theirs.by_name[name].type.base
    assert "g" in left_out or found.by_name["g"].type == theirs.by_name["g"].type
    for name in ("g", "gv"):
        assert (f"{name} is left out: the source's log may lack its values" in notes) == (name in left_out)
        assert (f"{name} is a plain column with the source's values" in notes) != (same or name in left_out)
    assert [(index.name, index.unique, index.columns) for index in found.indexes] == [
        (index.name, index.unique, index.columns) for index in theirs.indexes if not left_out & set(index.columns)
    ]
    assert (found.comment, found.by_name["a"].comment) == ("rich", theirs.by_name["a"].comment)
    assert found.by_name["inv"].invisible
    assert not found.checks
    pair.on_target(
        f"INSERT INTO {pair.made}.rich (id, u, p) VALUES (1, 'u', ST_GeomFromText('POINT(1 2)'))",
    )
    pair.on_source("INSERT INTO rich (id, u, p) VALUES (1, 'u', ST_GeomFromText('POINT(1 2)'))")
    read = "SELECT a, s, em, b + 0, HEX(vb), d, fl + 0e0, t2, e, z, dt, n, tx, inv, ts FROM {}.rich"
    ours, wanted = (
        server.run("SET time_zone = '+00:00'", read.format(database))[0]
        for server, database in ((pair.target, pair.made), (pair.source, pair.database))
    )
    assert ours[:-1] == wanted[:-1]
    assert ours[-1] is not None
    again = pair.create(pair.pipeline())
    assert {name: (table.state, table.differences) for name, table in again.items()} == dict.fromkeys(
        made, ("exists", ())
    )


COLLATED = {
    MYSQL: ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_de_pb_0900_ai_ci"),
    MARIADB: ("utf8mb4_uca1400_ai_ci", "utf8mb4_nopad_bin", "latin1_swedish_nopad_ci", "utf8mb4_uca1400_german2_as_cs"),
}


def test_collations_that_the_target_lacks_never_join_keys_that_the_source_keeps_apart(pair: Pair) -> None:
    names = COLLATED[flavor(pair.source)]
    for number, name in enumerate(names):
        charset = name.partition("_")[0]
        kind = f"VARCHAR(20) CHARACTER SET {charset} COLLATE {name} NOT NULL"
        pair.on_source(f"CREATE TABLE k{number} (id {kind} PRIMARY KEY, u {kind}, v {kind}, UNIQUE KEY u (u))")
    found: dict[str, set[str]] = {}
    pipeline = pair.pipeline()
    made = pair.create(pipeline)
    for number, name in enumerate(names):
        apart = ["a ", "b", "ae", "ss", *(["a"] if "nopad" in name or "0900" in name else [])]
        rows = ", ".join(f"('{letter}', '{letter}', '{letter}')" for letter in apart)
        pair.on_source(f"INSERT INTO k{number} VALUES {rows}")
        schema = known_schema(pair.source, pair.database, f"k{number}")
        destination = write(pair, pipeline, schema, rows_of(pair.source, schema))
        assert coarser_columns(destination.shards[0].facts, [schema]) == ()
        assert sorted(pair.on_target(f"SELECT id FROM {pair.made}.k{number}")) == [
            (letter,) for letter in sorted(apart)
        ]
        there = known_schema(pair.target, pair.made, f"k{number}")
        found[schema.column("id").type.collation] = {column.type.collation for column in there.columns[:3]}
        # Whatever is equal on the source is told apart by no more than its bytes.
        notes = made[f"{pair.made}.k{number}"].notes
        assert bool(notes) == (schema.column("id").type.collation not in found[schema.column("id").type.collation])
    if flavor(pair.source) == flavor(pair.target):
        assert found == {name: {name} for name in names}


def test_no_two_logical_tables_become_one(any_pair: Pair) -> None:
    pair = any_pair
    pair.on_source("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    with raises(Refused, "config.table_rule"):
        pair.create(pair.pipeline(tables="'*': {database: MADE, table: same}"))
    assert pair.on_target(f"SHOW DATABASES LIKE '{pair.made}'") == []


def test_names_with_capitals_are_refused_where_the_server_shows_them_in_small_letters(mariadb: MariaDb) -> None:
    """Gates and counters of a table are looked for by its name, and would seem not to be there."""
    options = {"lower-case-table-names": "1"}
    with MariaDb.start(server_id=9, options=options) as caseless, pair_of(mariadb, caseless) as pair:
        pair.on_source("CREATE TABLE orders (id INT PRIMARY KEY)")
        schema = known_schema(pair.source, pair.database, "orders")
        wrong, right = (
            [pair.pipeline(tables=f"'*': {{database: {database}, table: {table}}}") for database, table in names]
            for names in ([("MADE_Shop", "orders"), ("MADE", "Orders")], [("MADE_shop", "orders"), ("MADE", "orders")])
        )
        for pipeline in wrong:
            with raises(Refused, "config.table_rule"):
                pair.create(pipeline)
        pair.on_target("SET GLOBAL local_infile = ON")
        for database in (pair.made, f"{pair.made}_Shop"):
            pair.on_target(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.Orders (id INT PRIMARY KEY)")
        for pipeline in wrong:
            with raises(Refused, "config.table_rule") as caught:
                opened_destination(pipeline.targets[0], schema.name, [schema])
            assert "in `database` and `table`" in caught.value.remedy
        for pipeline in right:
            opened_destination(pipeline.targets[0], schema.name, [schema])


def test_a_pipeline_makes_no_table_that_it_captures(mariadb: MariaDb) -> None:
    with pair_of(mariadb, mariadb) as pair:
        pair.on_source("CREATE TABLE a (id INT PRIMARY KEY)")
        with raises(Refused, "check.loop"):
            pair.create(pair.pipeline(tables=f"'*': {{database: {pair.database}, table: copy}}"))


MERGED = r"[{match: '.*\.(?:orders)_\d', to: orders}]"


def test_sources_that_feed_one_table_must_agree_and_what_only_one_of_them_keeps_unique_is_not(any_pair: Pair) -> None:
    pair = any_pair
    for number in (1, 2):
        pair.on_source(f"CREATE TABLE orders_{number} (id INT PRIMARY KEY, u INT, n INT NOT NULL, UNIQUE KEY u (u))")
    pipeline = pair.pipeline(tables="orders: {database: MADE}", routes=MERGED)
    made = pair.create(pipeline)[f"{pair.made}.orders"]
    assert (made.state, any("u is not unique" in note for note in made.notes)) == ("created", True)
    pair.on_target(f"INSERT INTO {pair.made}.orders (id, u, n) VALUES (1, 1, 1), (2, 1, 1)")
    pair.on_source("ALTER TABLE orders_2 ADD COLUMN more INT NOT NULL")
    pair.on_target(f"DROP DATABASE {pair.made}")
    made = pair.create(pipeline)[f"{pair.made}.orders"]
    assert "the column more is not in every source table: it allows NULL" in made.notes
    pair.on_source("ALTER TABLE orders_2 MODIFY n BIGINT NOT NULL, MODIFY u SMALLINT")
    pair.on_target(f"DROP DATABASE {pair.made}")
    refused = pair.create(pipeline)[f"{pair.made}.orders"].error
    assert refused is not None
    assert refused.code == "target.not_creatable"
    assert all(text in refused.what for text in ("u is int in", "n is int in", "bigint", "smallint"))


def test_masked_and_excluded_columns_have_the_types_of_what_is_staged(any_pair: Pair) -> None:
    pair = any_pair
    pair.on_source(
        "CREATE TABLE people (id INT PRIMARY KEY, mail VARCHAR(99), secret INT, born DATE, UNIQUE KEY mail (mail), "
        "KEY secret (secret), KEY prefix (mail(5)), KEY born (born), g INT AS (secret + 1) STORED, "
        f"digest {HASH} COLLATE {HASH.collation} AS (SHA2(born, 256)) STORED COMMENT 'of the day')"
    )
    pipeline = pair.pipeline(
        rules=r"columns: {mask: ['.*\.mail', '.*\.digest'], exclude: ['.*\.secret'], salt: env:SALT}",
    )
    made = pair.create(pipeline)[f"{pair.made}.people"]
    assert made.state == "created"
    there = known_schema(pair.target, pair.made, "people")
    assert [str(column.type) for column in there.columns[:3]] == ["int", "char(64)", "date"]
    captured = known_schema(pair.source, pair.database, "people")
    logged = [name for name in ("g", "digest") if captured.column(name).logged]
    made_columns = [(column.name, column.generated) for column in there.columns]
    assert made_columns[3:-1] == [(name, False) for name in logged]
    assert "g" not in logged or str(there.column("g").type) == "int"
    assert "digest" not in logged or there.column("digest").type == HASH
    with opened(pair.target) as connection:
        found = read_definitions(connection, pair.made, ["people"])["people"]
    assert {index.name for index in found.indexes} == {"PRIMARY", "mail", "born"}
    assert sum("is left out" in note for note in made.notes) == 4 - len(logged)


def test_every_shard_is_made_and_two_at_once_make_the_same(any_pair: Pair) -> None:
    pair = any_pair
    pair.on_source(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, n INT)", "CREATE TABLE events (n INT, s VARCHAR(9), KEY n (n))"
    )
    sharded = (
        f"'{pair.database}.orders': {{database: MADE, table: 'orders_{{t:02d}}', sharding: {{key: id, tables: 8}}, "
        "guard: {store: table}}, '*': {database: MADE, no_key: rows}"
    )
    pipeline = pair.pipeline(tables=sharded)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: pair.create(pipeline), range(2)))
    wanted = {f"{pair.made}.orders_{number:02d}" for number in range(8)} | {f"{pair.made}.events"}
    for created in made:
        assert created.keys() == wanted
        assert {table.state for table in created.values()} <= {"created", "exists"}
        assert all(table.error is None and table.differences == () for table in created.values())
    for logical in (f"{pair.database}.orders", f"{pair.database}.events"):
        schema = known_schema(pair.source, *logical.split("."))
        key = None if schema.key else ()
        destination = open_destination(pipeline.targets[0], logical, [schema], TableUse(key=key))
        assert all(shard.facts.beside or shard.facts.keyless for shard in destination.shards)
    names = {name for (name,) in pair.on_target(f"SHOW TABLES FROM {pair.made}")}
    assert {
        "_lockstep_ledger",
        "_lockstep_mark",
        "_lockstep_version_orders_07",
        "_lockstep_tombstone_orders_00",
    } <= names


def test_a_table_that_was_dropped_and_is_made_again_has_none_of_the_writes_that_are_noted(any_pair: Pair) -> None:
    pair = any_pair
    pair.on_source("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    pipeline = pair.pipeline(tables="'*': {database: MADE, guard: {store: table}}")
    pair.create(pipeline)
    pair.on_source("INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1)")
    for table in ("a", "b"):
        schema = known_schema(pair.source, pair.database, table)
        write(pair, pipeline, schema, rows_of(pair.source, schema))
    noted = f"SELECT table_name FROM {pair.made}._lockstep_ledger"
    placed = f"SELECT table_name FROM {pair.made}._lockstep_table WHERE placement IS NOT NULL"
    assert sorted(pair.on_target(noted)) == sorted(pair.on_target(placed)) == [("a",), ("b",)]
    pair.on_target(f"DROP TABLE {pair.made}.a")
    assert pair.create(pipeline)[f"{pair.made}.a"].state == "created"
    assert pair.on_target(noted) == pair.on_target(placed) == [("b",)]
    assert pair.on_target(f"SELECT id FROM {pair.made}._lockstep_version_a") == []
    assert pair.on_target(f"SELECT id FROM {pair.made}._lockstep_version_b") == [(1,)]
    schema = known_schema(pair.source, pair.database, "a")
    write(pair, pipeline, schema, rows_of(pair.source, schema))
    assert sorted(pair.on_target(f"SELECT id FROM {pair.made}.a")) == [(1,), (2,)]


def test_an_existing_table_is_compared_and_only_extended_when_that_is_asked_for(pair: Pair) -> None:
    pair.on_source(
        "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(20) NOT NULL DEFAULT 'x' COMMENT 'c', n BIGINT, k INT NOT NULL, "
        "added INT NULL, filled VARCHAR(9) NOT NULL DEFAULT 'it''s \U0001f600', bare INT NOT NULL, small TINYINT, "
        "KEY n (n))"
    )
    pair.on_target(
        f"CREATE DATABASE {pair.made}",
        f"CREATE TABLE {pair.made}.t (id INT PRIMARY KEY, s VARCHAR(10) NOT NULL DEFAULT 'y' COMMENT 'mine', "
        "n INT NOT NULL, k INT NULL, small BIGINT, own INT, UNIQUE KEY own (own))",
        f"INSERT INTO {pair.made}.t (id, n) VALUES (1, 1)",
    )
    before = pair.on_target(f"SHOW CREATE TABLE {pair.made}.t")
    pipeline = pair.pipeline()
    for actions in (Actions(), Actions(alter=True, dry=True)):
        made_table = pair.create(pipeline, actions)[f"{pair.made}.t"]
        assert made_table.state == "exists"
        assert pair.on_target(f"SHOW CREATE TABLE {pair.made}.t") == before
    stops = {
        difference.what.split()[2]
        for difference, _ in pair.create(pipeline)[f"{pair.made}.t"].differences
        if difference.stops
    }
    assert stops == {"s", "n", "added", "filled", "bare"}
    told = "\n".join(difference.what for difference, _ in pair.create(pipeline)[f"{pair.made}.t"].differences)
    for text in ("own is not on the source", "key own is not", "k allows NULL", "index n is"):
        assert text in told
    altered = pair.create(pipeline, Actions(alter=True))[f"{pair.made}.t"]
    assert altered.state == "altered"
    assert not [difference for difference, _ in altered.differences if difference.stops]
    wanted = (1, "y", 1, None, None, "it's \U0001f600", None, None, None)  # each where the source has it
    assert pair.on_target(f"SELECT * FROM {pair.made}.t") == [wanted]
    there = known_schema(pair.target, pair.made, "t")
    shown = {column.name: (str(column.type), column.nullable) for column in there.columns}
    assert (shown["s"], shown["n"], shown["small"]) == (("varchar(20)", False), ("bigint", True), ("bigint", True))
    comment = f"SELECT COLUMN_COMMENT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{pair.made}' "
    assert pair.on_target(comment + "AND COLUMN_NAME = 's'") == [("mine",)]
    # Beside rows that exist, `bare` allows NULL; the statement that ends that is told.
    (strict,) = [alter for difference, alter in altered.differences if "column bare allows NULL" in difference.what]
    assert strict.endswith("NOT NULL")
    pair.on_target(f"DELETE FROM {pair.made}.t", f"ALTER TABLE {pair.made}.t DROP COLUMN bare")
    pair.create(pipeline, Actions(alter=True))
    emptied = known_schema(pair.target, pair.made, "t")
    assert [column.nullable for column in emptied.columns if column.name == "bare"] == [False]
    again = pair.create(pipeline, Actions(alter=True))[f"{pair.made}.t"]
    assert (again.state, again.statements) == ("exists", ())


def test_what_the_target_cannot_have_of_periods_and_long_keys_is_said(mariadb: MariaDb, mysql9: Any) -> None:
    with pair_of(mariadb, mysql9) as pair:
        pair.on_source(
            "CREATE TABLE stays (id INT, s DATE, e DATE, PERIOD FOR stay (s, e), UNIQUE (id, stay WITHOUT OVERLAPS))",
            "CREATE TABLE wide (id INT PRIMARY KEY, v VARCHAR(3000), w VARCHAR(768), UNIQUE long_v (v), KEY w (w))",
        )
        made = pair.create(pair.pipeline(tables="'*': {database: MADE, no_key: rows}"), Actions(create=True))
        assert {table.state for table in made.values()} == {"created"}, made
        assert [note for note in made[f"{pair.made}.stays"].notes if "FOR PORTION OF stay fails" in note]
        assert [note for note in made[f"{pair.made}.wide"].notes if "index long_v is left out: the whole v" in note]
        assert len(pair.on_target(f"SHOW INDEX FROM {pair.made}.wide")) == 2


def test_a_definition_that_the_target_cannot_have_is_refused_in_words_and_the_others_are_made(pair: Pair) -> None:
    text = "CREATE TABLE {} (k TEXT CHARACTER SET utf8mb4 NOT NULL, n INT, PRIMARY KEY (k(10)))"
    pair.on_source(text.format("large"), "CREATE TABLE fine (id INT PRIMARY KEY)")
    made = pair.create(pair.pipeline())
    assert made[f"{pair.made}.fine"].state == "created"
    large = made[f"{pair.made}.large"]
    if flavor(pair.target) == MARIADB:
        assert large.state == "created"
    else:
        assert large.error is not None
        assert (large.state, large.error.code) == ("missing", "target.definition")
        assert "MySQL has no unique key" in large.error.what


APART = (
    "a", "A", "a ", "á", "a\u0301", "ä", "ae", "æ", "å", "aa", "b", "c", "ć", "č", "ch", "d", "đ", "dz", "ǆ", "dž",
    "ð", "e\u0301", "é", "ĳ", "ij", "i", "ı", "İ", "l", "ł", "lj", "ǉ", "ll", "l·", "ŀ", "n", "ñ", "nj", "o", "ø", "ö",
    "oe", "œ", "s", "ß", "ẞ", "ss", "ſ", "sz", "ş", "ș", "t", "th", "þ", "u", "ü", "ue", "z", "ž", "zs", "か", "が",
    "カ", "ｶ", "가", "각", "😀", "😁", "ﬁ", "fi", "\u00ad", "a\u00ad", "\u200d", "\x01", "ꞅ", "ᷥ", "-", "'", "0",
)  # fmt: skip


def test_collations_of_one_name_compare_alike_on_both_kinds_of_server(mysql9: Any, mariadb: Any) -> None:
    """Or Lockstep calls them by two names: each collation that both have, over texts that are made to differ."""
    # MariaDB's sort keys of Big5 are equal for kana that it compares as different.
    known = {name: charset for name, charset in mysql9.run(COLLATIONS) if charset not in ("binary", "big5")}
    ranks = [ranked(server, known) for server in (mysql9, mariadb)]
    both = sorted(ranks[0].keys() & ranks[1].keys())
    assert len(both) > 250
    apart = [name for name in both if placed(ranks[0][name], ranks[1][name]) != placed(ranks[1][name], ranks[0][name])]
    assert len(apart) > 40
    for name in both:
        here, there = (
            parse_column_type("varchar(9)", charset=known[name], collation=name, mariadb=kind) for kind in (False, True)
        )
        assert (here == there) is ("_0900_" not in name)
        if name in apart:
            assert coarser(here, there), name
            assert coarser(there, here) is (name not in BYTES), name
            assert not ordered_alike(here, there), name
    uncertain = parse_column_type("varchar(9)", charset="utf8mb4", collation="utf8mb4_0900_bin", mariadb=True)
    assert coarser(uncertain, uncertain)
    assert not ordered_alike(uncertain, uncertain)
    assert mariadb.run(f"SELECT 'b' COLLATE {uncertain.collation} > 'a'") == [(1,)]


COLLATIONS = "SELECT COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"


def ranked(server: Any, known: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """By collation that the server has: the places of the texts in its order. Equal texts have one place."""
    texts = " UNION ALL ".join(f"SELECT CONVERT(0x{text.encode().hex()} USING utf8mb4) AS s" for text in APART)
    found = {}
    for name, charset in known.items():
        order = (
            f"SELECT HEX(s), DENSE_RANK() OVER (ORDER BY CONVERT(s USING {charset}) COLLATE {name}) FROM ({texts}) t"
        )
        with suppress(pymysql.err.OperationalError):  # unknown collation
            there = f"BINARY CONVERT(CONVERT(s USING {charset}) USING utf8mb4) = BINARY s"
            found[name] = dict(server.run(f"{order} WHERE {there}"))
    return found


def placed(ranks: Mapping[str, int], others: Mapping[str, int]) -> list[list[str]]:
    """The texts that both have, in their order: those of one place together."""
    common = ranks.keys() & others.keys()
    return [
        sorted(text for text in common if ranks[text] == place) for place in sorted({ranks[text] for text in common})
    ]


def test_keys_that_only_the_source_keeps_apart_are_refused_before_a_row_is_written(any_pair: Pair) -> None:
    """The target has a collation of the same name. In a table that Lockstep makes, they stay apart."""
    pair = any_pair
    finer = {MYSQL: "utf8mb4_sl_0900_ai_ci", MARIADB: "utf8mb4_0900_as_cs"}[flavor(pair.source)]
    kind = f"VARCHAR(9) CHARACTER SET utf8mb4 COLLATE {finer} PRIMARY KEY"
    pair.on_source(f"CREATE TABLE k (id {kind})")
    with pair.source.connect(pair.database, autocommit=True, charset="utf8mb4") as connection:
        connection.cursor().executemany("INSERT IGNORE INTO k VALUES (%s)", APART)
    schema, pipeline = known_schema(pair.source, pair.database, "k"), pair.pipeline()
    rows = rows_of(pair.source, schema)
    same = flavor(pair.source) == flavor(pair.target)
    pair.on_target(
        f"CREATE DATABASE {pair.made}", f"CREATE TABLE {pair.made}.k (id {kind}, _cdc_version VARBINARY(84))"
    )
    if same:
        assert coarser_columns(write(pair, pipeline, schema, rows).shards[0].facts, [schema]) == ()
        return
    with raises(DataAtRisk, "target.key_collapse"):
        write(pair, pipeline, schema, rows)
    assert pair.on_target(f"SELECT * FROM {pair.made}.k") == []
    pair.on_target(f"DROP TABLE {pair.made}.k")
    pair.create(pipeline)
    write(pair, pipeline, schema, rows)
    assert pair.on_target(f"SELECT COUNT(*) FROM {pair.made}.k") == [(rows.num_rows,)]
