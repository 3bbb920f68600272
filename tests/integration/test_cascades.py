"""Foreign keys that change rows without row events: whatever they may have changed is known as partial, and a copy
makes it right again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from cdc_core.errors import Refused
from cdc_core.mysql import connections
from cdc_core.operations.copy.pending import copied_by_runs
from cdc_core.source.schemas.cascades import logs_cascades, require_seen_cascades
from cdc_core.source.schemas.foreign_keys import foreign_keys, rules_in
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.stage.staged_coverage import coverage_of
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.integration.replicated import Pair
from tests.integration.test_source_definitions import CASCADES, KEYED, play_cascades
from tests.lab.copying import heal, is_equal, read, stage
from tests.lab.databases import fresh_name
from tests.lab.lab import Lab
from tests.lab.origin import Origin, own_origin
from tests.lab.refusals import raises

RESYNC = "on_unlogged_change: resync, on_unreadable: resync"


@pytest.fixture(
    scope="module",
    params=["mariadb", pytest.param("native", marks=pytest.mark.matrix)],
    ids=["mariadb", "mysql native"],
)
def any_server(request: pytest.FixtureRequest) -> MariaDb | MySql:
    """Of the kinds that do not log what foreign keys change."""
    kind = request.param
    return request.getfixturevalue("mariadb") if kind == "mariadb" else request.getfixturevalue("replicated")[0]


def partial(line: Lab) -> set[str]:
    """The tables that are not whole, without their database; the same in stage and meta."""
    line.coverage  # noqa: B018 - compares both
    found = coverage_of(line.store, "shop", line.chain)
    return {table.partition(".")[2] for table, coverage in found.items() if not coverage.whole and not coverage.gone}


def due(line: Lab) -> set[str]:
    return {run.name.partition(".")[2] for run in copied_by_runs(line.opened.meta, line.opened.pipeline, "shop")}


def tables(*keys: str) -> tuple[str, ...]:
    """p; and m and c with these ends of FOREIGN KEY clauses, or one table less."""
    made = ["CREATE TABLE p (id INT PRIMARY KEY, u INT UNIQUE, v INT)"]
    for name, key in zip("mc", keys, strict=False):
        made.append(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, f INT, u INT UNIQUE, v INT, FOREIGN KEY (f) REFERENCES {key})"
        )
    made += [f"INSERT INTO {t} VALUES ({n}, {'' if t == 'p' else f'{n}, '}{n}, 0)"
             for n in range(1, 7) for t in ["p", *"mc"[: len(keys)]]]  # fmt: skip
    return tuple(made)


DELETE, NULL, UPDATE = "ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"
SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...], set[str]]] = {
    "rows go with their parent": (tables(f"p (id) {DELETE}"), ("DELETE FROM p WHERE id = 2",), {"m"}),
    "set null": (tables(f"p (id) {NULL}"), ("DELETE FROM p WHERE id IN (1, 3)",), {"m"}),
    "replace": (tables(f"p (id) {DELETE}"), ("REPLACE INTO p VALUES (2, 2, 5)",), {"m"}),
    "another key": (tables(f"p (id) {UPDATE}"), ("UPDATE p SET id = 90 WHERE id = 2",), {"m"}),
    "another column": (tables(f"p (id) {UPDATE}"), ("UPDATE p SET v = 90, u = 91 WHERE id = 2",), set()),
    "a unique column": (tables(f"p (u) {UPDATE}"), ("UPDATE p SET u = 90 WHERE id = 2",), {"m"}),
    "only inserts": (
        tables(f"p (id) {DELETE} {UPDATE}"), ("INSERT INTO p VALUES (9, 9, 9)", "DELETE FROM m WHERE id = 1"), set(),
    ),
    "restricted": (tables("p (id)"), ("DELETE FROM m WHERE f = 2", "DELETE FROM p WHERE id = 2"), set()),
    "through a table": (tables(f"p (id) {DELETE}", f"m (id) {DELETE}"), ("DELETE FROM p WHERE id = 2",), {"m", "c"}),
    "not further than a null": (tables(f"p (id) {NULL}", f"m (id) {DELETE}"), ("DELETE FROM p WHERE id = 2",), {"m"}),
    "the middle one": (tables(f"p (id) {DELETE}", f"m (id) {DELETE}"), ("DELETE FROM m WHERE id = 2",), {"c"}),
    "of itself": (
        ("CREATE TABLE m (id INT PRIMARY KEY, f INT, FOREIGN KEY (f) REFERENCES m (id) ON DELETE CASCADE)",
         "INSERT INTO m VALUES (1, NULL)", "INSERT INTO m VALUES (2, 1)", "INSERT INTO m VALUES (3, 2)"),
        ("DELETE FROM m WHERE id = 2",), {"m"},
    ),
}  # fmt: skip


def numbered(at: int, statements: Iterable[str]) -> list[str]:
    """The tables and keys of the statements get the number: several of them can be in one database."""
    return [re.sub(r"\b[pqmckl](?=\b|_ibfk)", rf"\g<0>{at}", sql) for sql in statements]


def in_turn(several: Iterable[Iterable[str]]) -> list[str]:
    return [sql for at, statements in enumerate(several) for sql in numbered(at, statements)]


def test_tables_that_keys_change_are_partial_until_they_are_copied(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    made = in_turn(setup for setup, _, _ in SHAPES.values())
    line.origin.execute(*made)
    line.drain()
    assert partial(line) == set()
    line.origin.execute(*in_turn(statements for _, statements, _ in SHAPES.values()))
    line.drain()
    changed = {f"{table}{at}" for at, (*_, several) in enumerate(SHAPES.values()) for table in several}
    assert partial(line) == due(line) == changed
    heal(line)
    assert partial(line) == set()
    is_equal(line, *(sql.split()[2] for sql in made if sql.startswith("CREATE")))


KEYS = {
    "a text": ("VARCHAR(20)", "'a'", "'b'"),
    "its case": ("VARCHAR(20)", "'a'", "'A'"),
    "an ENUM": ("ENUM('x', 'y')", "'x'", "'y'"),
    "a zero date": ("DATE", "'2020-01-01'", "'0000-00-00'"),
    "from a zero date": ("DATE", "'2020-00-00'", "'0000-00-00'"),
    "a decimal": ("DECIMAL(40, 5)", "1.5", "1.6"),
}  # fmt: skip


@pytest.mark.parametrize(
    "image", ["FULL", *(pytest.param(image, marks=pytest.mark.matrix) for image in ("MINIMAL", "NOBLOB"))]
)
def test_only_updates_of_a_referenced_column_count(make_line: Callable[..., Lab], image: str) -> None:
    line = make_line(tables=RESYNC)
    session = ("SET SESSION sql_mode = ''", f"SET SESSION binlog_row_image = '{image}'")

    def happens(*statements: str) -> None:
        """To the tables of each key."""
        line.origin.execute(*session, *in_turn([sql.format(*key) for sql in statements] for key in KEYS.values()))
        line.drain()

    happens(
        "CREATE TABLE p (id INT PRIMARY KEY, k {0} UNIQUE, v INT, t TEXT, odd DATE)",
        "CREATE TABLE m (id INT PRIMARY KEY, k {0}, FOREIGN KEY (k) REFERENCES p (k) ON UPDATE CASCADE)",
        "INSERT INTO p VALUES (1, {1}, 0, 'x', '0000-00-00')", "INSERT INTO m VALUES (1, {1})",
    )  # fmt: skip
    same = () if image == "MINIMAL" else ("UPDATE p SET k = {1}, v = 2",)  # there it has no former value
    happens("UPDATE p SET v = 1, t = 'y'", *same)
    assert partial(line) == set()
    happens("UPDATE p SET k = {2}")
    assert partial(line) == {f"m{at}" for at in range(len(KEYS))}
    heal(line)
    assert partial(line) == set()


@pytest.mark.parametrize("captured", ["c", *(pytest.param(case, marks=pytest.mark.matrix) for case in ("p|c", "m|c"))])
@pytest.mark.parametrize(
    ("keys", "statement"),
    [
        ((f"p (id) {DELETE}", f"m (id) {DELETE}"), "DELETE FROM p WHERE id = 2"),
        ((f"p (id) {UPDATE}", f"m (f) {UPDATE}"), "UPDATE p SET id = 90 WHERE id = 2"),
    ],
    ids=["deletes", "updates"],
)
def test_keys_of_tables_that_are_not_captured_count(
    make_line: Callable[..., Lab], captured: str, keys: tuple[str, str], statement: str
) -> None:
    line = make_line(tables=rf"include: ['.*\.({captured})'], {RESYNC}")
    made = list(tables(*keys))
    if "m (f)" in keys[1]:  # what is referred to needs a key
        made[1] = made[1].replace("f INT", "f INT UNIQUE")
    line.origin.execute(*made)
    line.drain()
    line.origin.execute("UPDATE p SET v = 1" if "p" in captured else "INSERT INTO p VALUES (77, 77, 77)")
    line.drain()
    assert partial(line) == set()
    line.origin.execute(statement)
    line.drain()
    assert partial(line) == set(captured.split("|")) - {"p"}
    heal(line)
    assert partial(line) == set()
    is_equal(line, *captured.split("|"))


def test_a_prepared_transaction_counts_when_it_is_committed(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=rf"include: ['.*\.m'], {RESYNC}")
    line.origin.execute(*tables(f"p (id) {DELETE}"))
    line.drain()
    xid = f"'{line.origin.name}','b',1"
    with line.origin.session() as run:
        run(f"XA START {xid}", "DELETE FROM p WHERE id = 2", f"XA END {xid}", f"XA PREPARE {xid}")
    line.drain()
    ended = line.chain[-1].end.position.seq
    with line.origin.session() as run:
        run(f"XA COMMIT {xid}")
    line.drain()  # by another stream, which has not seen what was prepared
    (coverage,) = coverage_of(line.store, "shop", line.chain).values()
    assert coverage.cascaded_seq >= ended
    heal(line)
    is_equal(line, "m")


def test_a_copy_that_is_under_way_counts_for_what_was_before_it(make_line: Callable[..., Lab]) -> None:
    """What goes meanwhile does not end the copy; it makes another one due."""
    line = make_line(tables=RESYNC)
    line.origin.execute(*tables(f"p (id) {DELETE}"), "DELETE FROM p WHERE id = 1")
    line.drain()
    line.origin.execute("INSERT INTO p VALUES (8, 8, 8)")
    read(line)
    line.origin.execute("DELETE FROM p WHERE id = 2", "INSERT INTO p VALUES (9, 9, 9)")
    line.drain()
    staged = stage(line)
    assert (staged.dropped, len(staged.tables)) == ((), 1)
    assert partial(line) == due(line) == {"m"}
    heal(line)
    assert partial(line) == set()
    is_equal(line, "p", "m")


def test_only_recorded_a_change_by_a_key_leaves_the_table_partial(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_unlogged_change: record")
    line.origin.execute(*tables(f"p (id) {DELETE}"))
    line.drain()
    line.origin.execute("DELETE FROM p WHERE id = 2")
    line.drain()
    assert (partial(line), due(line)) == ({"m"}, set())
    assert "by a foreign key" in line.refuses("m")


def test_a_table_that_is_seen_empty_before_its_log_is_read_is_not_whole(make_line: Callable[..., Lab]) -> None:
    """The log brings a row, and not that it has gone with its parent."""
    line = make_line(tables=RESYNC)
    line.origin.execute(*tables(f"p (id) {DELETE}"), "DELETE FROM m")
    line.begin_now()
    line.origin.execute("INSERT INTO m VALUES (2, 2, 2, 2)", "DELETE FROM p WHERE id = 2")
    line.drain()
    assert "m" in due(line)
    heal(line)
    is_equal(line, "m")


def test_a_table_that_is_seen_empty_after_its_rows_have_gone_is_not_whole(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*tables(f"p (id) {DELETE}"))
    line.begin_now()
    line.origin.execute("INSERT INTO p VALUES (7, 7, 7)")
    line.drain()
    assert (partial(line), due(line)) == ({"p", "m"}, set())  # rows from before the capture: snapshot.mode is none
    line.origin.execute("INSERT INTO m VALUES (7, 7, 7, 7)", "DELETE FROM p")
    line.drain()
    line.origin.execute("INSERT INTO p VALUES (8, 8, 8)", "DELETE FROM p")
    line.drain()  # a survey finds both empty
    assert (partial(line), due(line)) == ({"m"}, {"m"})
    heal(line)
    assert partial(line) == set()
    is_equal(line, "p", "m")


def test_a_table_that_appeared_later_is_copied_even_if_its_earlier_rows_are_not(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=rf"include: ['.*\.x'], on_new: stream, {RESYNC}")
    line.drain()
    line.origin.execute(*tables(f"p (id) {DELETE}"))
    line.drain()
    line.change(tables=r"include: ['.*\.m']")
    line.origin.execute("UPDATE m SET v = 1 WHERE id = 5")
    line.drain()
    assert (partial(line), due(line)) == ({"m"}, set())
    line.origin.execute("INSERT INTO m VALUES (9, 2, 9, 9)", "DELETE FROM p WHERE id = 2")
    line.drain()
    assert due(line) == {"m"}
    heal(line)
    is_equal(line, "m")


UNSEEN: dict[str, tuple[str, ...]] = {
    "dropped since": ("DELETE FROM p WHERE id = 1", "ALTER TABLE m DROP FOREIGN KEY k"),
    "added and dropped": (
        "ALTER TABLE m DROP FOREIGN KEY k",
        "ALTER TABLE m ADD CONSTRAINT l FOREIGN KEY (f) REFERENCES p (id) ON DELETE CASCADE",
        "DELETE FROM p WHERE id = 1", "ALTER TABLE m DROP CONSTRAINT l",
    ),
    "the parent has another name": ("DELETE FROM p WHERE id = 1", "RENAME TABLE p TO q"),
    "the parent has another name by ALTER": ("DELETE FROM p WHERE id = 1", "ALTER TABLE p RENAME TO q"),
}  # fmt: skip


@pytest.mark.parametrize("captured", ["m", pytest.param("p|q|m", marks=pytest.mark.matrix)])
def test_keys_that_the_server_has_no_more_count(make_line: Callable[..., Lab], captured: str) -> None:
    line = make_line(tables=rf"include: ['.*\.({captured})\d'], {RESYNC}")
    made = [sql.replace("FOREIGN KEY", "CONSTRAINT k FOREIGN KEY") for sql in tables(f"p (id) {DELETE}")]
    line.origin.execute(*in_turn([made] * len(UNSEEN)))
    line.drain()
    line.origin.execute(*in_turn(UNSEEN.values()))
    line.drain()
    children = {f"m{at}" for at in range(len(UNSEEN))}
    assert partial(line) >= children
    heal(line)
    assert partial(line) == set()
    is_equal(line, *children)


LEADING_ON: dict[str, tuple[str, ...]] = {
    "its key was dropped": ("ALTER TABLE m DROP FOREIGN KEY m_ibfk_1",),
    "it was dropped": ("SET foreign_key_checks = 0", "DROP TABLE m", "CREATE TABLE m (id INT PRIMARY KEY)"),
    "its database was dropped": (
        "SET foreign_key_checks = 0", "DROP DATABASE OTHER", "CREATE DATABASE OTHER",
        "CREATE TABLE OTHER.m (id INT PRIMARY KEY)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("captured", ["c", pytest.param("p|m|c", marks=pytest.mark.matrix)])
def test_keys_count_that_led_to_a_table_between_parent_and_child(make_line: Callable[..., Lab], captured: str) -> None:
    line = make_line(tables=rf"include: ['.*\.({captured})\d'], {RESYNC}")
    other = f"{line.origin.name}_other"
    made = tables(f"p (id) {DELETE}", f"m (id) {DELETE}")
    places = {"OTHER": other, "OWN": line.origin.name}
    far = [
        re.sub(r"(?<=TABLE )m|(?<=INTO )m|(?<=REFERENCES )m", "OTHER.m", sql).replace("S p", "S OWN.p") for sql in made
    ]

    def happens(at: int, *statements: str) -> None:
        """In a session of its own: without checks, keys change nothing."""
        line.origin.execute(*(re.sub("OTHER|OWN", lambda it: places[it[0]], sql) for sql in numbered(at, statements)))

    line.origin.execute(f"CREATE DATABASE {other}")
    for at, name in enumerate(LEADING_ON):
        happens(at, *(far if "database" in name else made))
    line.drain()
    for at, statements in enumerate(LEADING_ON.values()):
        happens(at, "DELETE FROM p WHERE id = 2", *statements)
    line.drain()
    children = {f"c{at}" for at in range(len(LEADING_ON))}
    assert partial(line) >= children
    heal(line)
    is_equal(line, *children)
    line.origin.execute("SET foreign_key_checks = 0", f"DROP DATABASE {other}")


@pytest.mark.parametrize("follows", [False, True], ids=["read later", "followed"])
def test_keys_count_by_columns_that_get_another_name(make_line: Callable[..., Lab], follows: bool) -> None:
    """Another column has the name that the key knows, or knew."""
    line = make_line(tables=RESYNC)
    line.origin.execute(*tables(f"p (u) {UPDATE}"))
    line.drain()
    with line.extractor() as extractor:
        if follows:
            line.origin.execute("ALTER TABLE p CHANGE u x INT, CHANGE v u INT", "UPDATE p SET x = 50 WHERE id = 1")
            extractor.drain()
    if not follows:
        line.origin.execute("UPDATE p SET u = 50 WHERE id = 1", "ALTER TABLE p CHANGE v y INT, CHANGE u v INT")
        line.drain()
    assert "m" in partial(line)
    heal(line)
    is_equal(line, "m")


@pytest.mark.parametrize("captured", ["m", pytest.param("p|m", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("dropped", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_row_of_a_versioned_parent_that_is_deleted_counts(
    make_line: Callable[..., Lab], captured: str, dropped: bool
) -> None:
    """MariaDB logs it as an update, which ends the row's time. MySQL has no such tables."""
    line = make_line(tables=rf"include: ['.*\.({captured})'], {RESYNC}")
    versioned = "WITH SYSTEM VERSIONING" if line.origin.mariadb else ""
    made = tables(f"p (id) {DELETE}")
    line.origin.execute(f"{made[0]} {versioned}", *made[1:])
    line.drain()
    line.origin.execute("DELETE FROM p WHERE id = 2")
    if dropped and versioned:
        line.origin.execute("SET system_versioning_alter_history = KEEP", "ALTER TABLE p DROP SYSTEM VERSIONING")
    line.drain()
    assert "m" in partial(line)
    heal(line)
    is_equal(line, "m")


def test_keys_that_are_added_while_the_log_is_followed_count(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=rf"include: ['.*\.m'], {RESYNC}")
    line.origin.execute(*(table.partition(", FOREIGN")[0] + ")" * (", FOREIGN" in table) for table in tables("p (id)")))
    with line.extractor() as extractor:
        line.origin.execute("DELETE FROM p WHERE id = 1")
        extractor.drain()
        key = f"FOREIGN KEY (f) REFERENCES p (id) {DELETE}"
        line.origin.execute("DELETE FROM m WHERE id = 1", f"ALTER TABLE m ADD {key}")
        extractor.drain()
        assert partial(line) == set()
        line.origin.execute("DELETE FROM p WHERE id = 2")
        extractor.drain()
        assert partial(line) == {"m"}
    heal(line)
    is_equal(line, "m")


@contextmanager
def reader_of(origin: Origin, *grants: str) -> Iterator[pymysql.Connection]:
    """A connection of an account that may read the log, and these tables."""
    user = fresh_name()
    origin.execute_on_server(
        f"CREATE USER {user}@'%' IDENTIFIED BY 'Reader-1x'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
        *(f"GRANT SELECT ON {grant} TO {user}@'%'" for grant in grants),
    )
    with closing(connections.connect(origin.address(user, "Reader-1x"), where="test")) as reader:
        yield reader
    origin.execute_on_server(f"DROP USER {user}@'%'")


def test_a_reader_finds_the_rules_of_keys(origin: Origin) -> None:
    """MariaDB does not show them to it where others find them."""
    origin.execute(*tables(f"p (id) {DELETE} ON UPDATE SET NULL", "m (id)"))
    with reader_of(origin, f"{origin.name}.*") as reader:
        seen = {key.child[1]: key for key in foreign_keys(reader) if key.child[0] == origin.name}
        assert seen == {key.child[1]: key for key in foreign_keys(origin.control) if key.child[0] == origin.name}
        m, c = seen["m"], seen["c"]
        assert (m.parent, m.columns, m.referenced) == ((origin.name, "p"), ("f",), ("id",))
        assert (m.on_delete, m.on_update, m.changes_rows) == ("CASCADE", "SET NULL", True)
        assert (c.parent, c.changes_rows) == ((origin.name, "m"), False)
        with pytest.raises(Refused) as caught:
            require_seen_cascades(
                reader, lambda database, _: database == origin.name, source="shop", policy=CapturePolicy()
            )
        assert (caught.value.code, "ON DELETE CASCADE" in caught.value.what) == ("source.unlogged_cascades", True)


def test_a_table_between_that_the_account_does_not_see_is_refused(origin: Origin) -> None:
    origin.execute(*tables(f"p (id) {DELETE}", f"m (id) {DELETE}"))

    def passes(reader: pymysql.Connection, policy: str) -> tuple[str, ...]:
        return require_seen_cascades(
            reader, lambda database, table: (database, table) == (origin.name, "c"), source="shop",
            policy=CapturePolicy(on_unlogged_change=policy),  # type: ignore[arg-type]
        )  # fmt: skip

    with reader_of(origin, f"{origin.name}.c") as reader:
        with raises(Refused, "source.unlogged_cascades", match=f"{origin.name}[.]m, which the account does not see"):
            passes(reader, "resync")
        assert "unknown" in passes(reader, "record")[-1]
    with reader_of(origin, *(f"{origin.name}.{letter}" for letter in "pmc")) as reader:
        (line,) = passes(reader, "resync")
        assert "ON DELETE CASCADE" in line


def test_rules_are_read_whatever_the_names_are() -> None:
    shown = """CREATE TABLE `t` (
  `a` int COMMENT 'x, CONSTRAINT `n` FOREIGN KEY ON DELETE CASCADE',
  CONSTRAINT `a ``b` FOREIGN KEY (`ON DELETE CASCADE`) REFERENCES `p` (`x ON UPDATE CASCADE`),
  CONSTRAINT "q""r" FOREIGN KEY ("a") REFERENCES "p" ("b") ON DELETE SET NULL ON UPDATE NO ACTION
) ENGINE=InnoDB"""
    assert rules_in(shown) == [("a `b", "RESTRICT", "RESTRICT"), ('q"r', "SET NULL", "NO ACTION")]


def test_what_looks_like_a_rule_in_a_comment_is_none(origin: Origin) -> None:
    """Servers show a line feed in a text as \\n, and other separators of lines as they are."""
    key = "  CONSTRAINT `k` FOREIGN KEY (`f`) REFERENCES `p` (`id`)"
    looks = "".join(f"{mark}{key}" for mark in "\n\r\x0b\x0c\x1c\x85\u2028")
    origin.execute("CREATE TABLE p (id INT PRIMARY KEY)")
    with origin.session() as run:
        run(
            f"CREATE TABLE m (id INT PRIMARY KEY, f INT COMMENT '{looks}', d VARCHAR(500) DEFAULT '{looks}', "
            f"CONSTRAINT k FOREIGN KEY (f) REFERENCES p (id) ON DELETE CASCADE) COMMENT '{looks}'"
        )
        [(_, shown)] = run("SHOW CREATE TABLE m")
    assert rules_in(shown) == [("k", "CASCADE", "RESTRICT")]


RULES = ("", "ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE", "ON UPDATE SET NULL",
         "ON DELETE CASCADE ON UPDATE CASCADE", "ON DELETE SET NULL ON UPDATE CASCADE")  # fmt: skip


def statements(chance: random.Random, names: Sequence[str]) -> Iterator[str]:
    while True:
        table, key, other = chance.choice(names), chance.randint(1, 12), chance.randint(1, 12)
        yield chance.choice((
            f"INSERT IGNORE INTO {table} VALUES ({key}, {chance.choice([other, 'NULL'])}, {chance.randint(1, 40)})",
            f"REPLACE INTO {table} VALUES ({key}, {chance.choice([other, 'NULL'])}, {chance.randint(1, 40)})",
            f"DELETE FROM {table} WHERE id = {key}",
            f"UPDATE IGNORE {table} SET id = {other} WHERE id = {key}",
            f"UPDATE IGNORE {table} SET v = {chance.randint(1, 40)} WHERE id = {key}",
        ))  # fmt: skip


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 40))])
def test_whatever_keys_do_a_table_that_counts_as_whole_is_equal(make_line: Callable[..., Lab], seed: int) -> None:
    """Keys at random between four tables, some of them captured, and writes at random."""
    chance = random.Random(seed)
    names = ["t0", "t1", "t2", "t3"]
    captured = sorted(chance.sample(names, chance.randint(2, 4)))
    line = make_line(tables=f"include: ['.*[.]({'|'.join(captured)})'], {RESYNC}")
    for at, name in enumerate(names):
        line.origin.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, f INT, v INT UNIQUE)")
        for _ in range(chance.randint(0, 2) if at else 0):
            column = chance.choice(["id", "v"])
            line.origin.execute(
                f"ALTER TABLE {name} ADD FOREIGN KEY (f) REFERENCES {chance.choice(names[:at])} ({column}) "
                f"{chance.choice(RULES)}"
            )
        line.origin.execute(
            f"INSERT INTO {name} VALUES (1, NULL, 1), (2, 1, 2), (3, NULL, 3)"
            if at == 0
            else f"INSERT INTO {name} VALUES (1, 1, 1), (2, 2, 2), (3, NULL, 3)"
        )
    line.drain()
    writes = statements(chance, names)
    for _ in range(6):
        with line.origin.session() as run:
            run("SET SESSION sql_mode = ''")
            for _ in range(chance.randint(1, 25)):
                statement = next(writes)
                with suppress(pymysql.err.IntegrityError):  # a key refuses it
                    run(statement)
        line.drain()
        is_equal(line, *(set(captured) - partial(line)))
        if chance.random() < 0.5:
            heal(line)
            assert partial(line) == set()
            is_equal(line, *captured)


@pytest.fixture(scope="module")
def replicated(mysql9: object) -> Iterator[tuple[MySql, MySql]]:
    """A server that does not log what foreign keys change, and a replica, which does for its own changes."""
    native = {"innodb-native-foreign-keys": "ON"}
    with MySql.start(server_id=7, options=native) as primary, MySql.start(server_id=8) as replica:
        Pair("mysql", primary, replica).replicate()
        yield primary, replica


@pytest.mark.parametrize("captured", ["m", "p|m"])
def test_a_replica_logs_no_more_than_its_source(replicated: tuple[MySql, MySql], tmp_path: Path, captured: str) -> None:
    primary, replica = replicated
    name = fresh_name()
    writer, reader = Origin(primary, name), Origin(replica, name)

    def execute(*statements: str) -> None:
        writer.execute(*statements)
        [[done]] = primary.run("SELECT @@GLOBAL.gtid_executed")
        assert replica.run(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', 60)") == [(0,)]

    primary.run(f"CREATE DATABASE {name}")
    assert logs_cascades(reader.control)
    include = rf"include: ['{name}\.({captured})']"
    line = Lab(tmp_path, reader, tables=f"{include}, {RESYNC}")
    execute(*tables(f"p (id) {DELETE}"))
    line.drain()
    assert partial(line) == set()
    execute("DELETE FROM p WHERE id = 2")
    line.drain()
    assert partial(line) == due(line) == {"m"}
    heal(line)
    assert partial(line) == set()
    is_equal(line, *captured.split("|"))
    line.change(tables="on_unlogged_change: stop, on_unreadable: stop")
    execute("UPDATE p SET v = 2 WHERE id = 3")
    with raises(Refused, "source.unlogged_cascades"):
        line.extract()


def test_what_is_logged_is_not_copied_again(mysql9: MySql, tmp_path: Path) -> None:
    with own_origin(mysql9) as origin, Lab(tmp_path, origin, tables=RESYNC) as line:
        origin.execute(*tables(f"p (id) {DELETE}"), "DELETE FROM p WHERE id = 2")
        line.drain()
        assert partial(line) == set()
        is_equal(line, "p", "m")


def test_a_server_with_native_keys_does_not_log_what_they_change(replicated: tuple[MySql, MySql]) -> None:
    with own_origin(replicated[0]) as origin:
        assert not logs_cascades(origin.control)
        play_cascades(origin, CASCADES["added and dropped"])
        origin.execute(f"ALTER TABLE child ADD CONSTRAINT k {KEYED}")
        with raises(Refused, "source.unlogged_cascades"):
            require_seen_cascades(
                origin.control, lambda database, _: database == origin.name, source="shop", policy=CapturePolicy()
            )
