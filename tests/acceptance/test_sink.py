"""Rows filtered, columns left out and masked, a processor: what is staged and applied is what the source would show."""

from __future__ import annotations

import random
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.forked_commands import ROOT

SALT = "a long rändom text"
WHERE = "status in ('paid', 'sent') and amount >= 10 or note is null and id > 30"
COLUMNS = "id INT PRIMARY KEY, status ENUM('new', 'paid', 'sent'), amount DECIMAL(9,2), note VARCHAR(20)"
TABLE = f"CREATE TABLE flt.orders ({COLUMNS}, secret VARCHAR(20), email VARCHAR(40) CHARACTER SET utf8mb4)"
COPY = f"CREATE TABLE flt_copy.orders ({COLUMNS}, email CHAR(64))"
SHOWN = "id, CAST(status AS CHAR), amount, note"
HASHED = f"SHA2(CONCAT('{SALT}', email), 256)"
PIPELINE = r"""
pipeline: flt
sources: [{name: shop, connection: env:SHOP, server_id: 4711}]
tables:
  include: ['flt\..*']
  rows: [{match: 'flt\.orders', where: "WHERE"}]
  columns: {exclude: ['.*\.secret'], mask: ['flt\.orders\.email'], salt: env:SALT}
stage: {uri: "file://HERE/stage"}
meta: {url: "sqlite:///HERE/meta.db"}
targets: [{name: copy, connections: [env:COPY], tables: {'*': {database: flt_copy, table: orders}}}]
"""


@pytest.fixture(params=["mariadb", "mysql9"])
def source(request: pytest.FixtureRequest, lockstep: Any) -> Iterator[Any]:
    """A cursor on an empty `flt.orders`; `flt.yaml` begins here."""
    server = request.getfixturevalue(request.param)
    lockstep.environ |= {"SHOP": server.url, "SALT": SALT}
    write(lockstep)
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE flt")
        cursor.execute(TABLE)
        cursor.execute("USE flt")
        lockstep("extract", "flt.yaml")
        yield cursor


ON_MYSQL, ON_MARIADB = (pytest.mark.parametrize("source", [server], indirect=True) for server in ("mysql9", "mariadb"))
ON_ONE = pytest.mark.parametrize("source", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True)
"""For what does not depend on the server."""


def write(lockstep: Any, *changes: tuple[str, str]) -> None:
    text = PIPELINE.replace("WHERE", WHERE)
    for old, new in changes:
        text = text.replace(old, new)
    (lockstep.directory / "flt.yaml").write_text(text.replace("HERE", str(lockstep.directory)))


def work(source: Any, statements: int, seed: int) -> int:
    """Changes of all kinds, in and out of the filter; how many rows they changed."""
    chance = random.Random(seed)
    changed = 0
    for _ in range(statements):
        key, status = chance.randrange(60), chance.choice(("new", "paid", "sent", None))
        values = (status, chance.randrange(2000) / 100, chance.choice((None, "a", "b")), "hide me", f"Ü{key % 7}@x")
        chosen = chance.randrange(6)
        if chosen < 2:
            sql = "INSERT IGNORE INTO orders (status, amount, note, secret, email, id) VALUES (%s, %s, %s, %s, %s, %s)"
        elif chosen < 4:
            sql = "UPDATE orders SET status = %s, amount = %s, note = %s, secret = %s, email = %s WHERE id = %s"
        else:
            sql = (
                "DELETE FROM orders WHERE id = %s"
                if chosen == 4
                else "UPDATE IGNORE orders SET id = id + 7 WHERE id = %s"
            )
            values = ()
        changed += source.execute(sql, (*values, key))
    return changed


def exported(lockstep: Any) -> list[dict[str, Any]]:
    return list(lockstep.exported("flt.orders", file="flt.yaml").to_pylist())


def wanted(source: Any, email: str) -> list[tuple[Any, ...]]:
    where = WHERE.replace("==", "=")
    source.execute(f"SELECT {SHOWN}, {email} FROM orders WHERE {where} ORDER BY id")
    return list(source.fetchall())


@ON_MYSQL
def test_what_is_carried_is_what_a_select_with_the_filter_shows_with_every_row_accounted_for(
    source: Any, lockstep: Any
) -> None:
    changed = work(source, 400, seed=4)
    lockstep("extract", "flt.yaml")
    changed += work(source, 200, seed=5)
    lockstep("extract", "flt.yaml")
    assert [tuple(row.values())[:5] for row in exported(lockstep)] == wanted(source, HASHED)
    shown = lockstep("stage", "ls", "flt.yaml").document["batches"]
    left_out = sum(document["left_out"].get("row outside tables.rows", 0) for document in shown)
    assert left_out > 0
    assert sum(document["rows"] for document in shown) + left_out == changed
    every = b"".join(path.read_bytes() for path in (lockstep.directory / "stage").rglob("*.json"))
    assert b'"secret"' not in every


@ON_MARIADB
@pytest.mark.spark
def test_a_target_ends_as_a_select_with_the_filter_shows(source: Any, mariadb_target: Any, lockstep: Any) -> None:
    lockstep.environ["COPY"] = mariadb_target.url
    work(source, 300, seed=6)
    with mariadb_target.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as copy:
        copy.execute("CREATE DATABASE flt_copy")
        copy.execute(COPY)
        assert lockstep("check", "flt.yaml").document["ok"] is True
        ran = lockstep("run", "flt.yaml", "--until", "now").document
        copy.execute(f"SELECT {SHOWN}, email FROM flt_copy.orders ORDER BY id")
        found = list(copy.fetchall())
    assert found == wanted(source, HASHED)
    assert [entry["problems"] for entry in ran["ledgers"]] == [[]]


@ON_MARIADB
@pytest.mark.spark
def test_after_an_edit_of_filter_and_masks_the_next_run_brings_the_target_to_what_the_new_rules_show(
    source: Any, mariadb_target: Any, lockstep: Any
) -> None:
    lockstep.environ["COPY"] = mariadb_target.url
    initial = ("targets:", "snapshot: {mode: initial}\ntargets:")
    write(lockstep, initial)
    work(source, 300, seed=7)
    with mariadb_target.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as copy:
        copy.execute("CREATE DATABASE flt_copy")
        copy.execute(COPY.replace("CHAR(64)", "VARCHAR(64)"))
        lockstep("run", "flt.yaml")
        for where in ("id > 25 or status == 'new'", "id < 40"):  # each lets rows in, and others out
            write(lockstep, initial, (WHERE, where), ("mask: ['flt\\.orders\\.email'], salt: env:SALT", "mask: []"))
            work(source, 50, seed=8)
            lockstep("run", "flt.yaml")
            copy.execute(f"SELECT {SHOWN}, email FROM flt_copy.orders ORDER BY id")
            source.execute(f"SELECT {SHOWN}, email FROM orders WHERE {where.replace('==', '=')} ORDER BY id")
            there = list(source.fetchall())
            assert list(copy.fetchall()) == there
            assert [tuple(row.values())[:5] for row in exported(lockstep)] == there
            assert lockstep("verify", "flt.yaml").document["equal"] is True


@ON_MYSQL
def test_rows_that_do_not_say_whether_they_meet_the_filter_stop_and_the_remedy_helps(
    source: Any, lockstep: Any
) -> None:
    source.execute("SET SESSION binlog_row_image = MINIMAL")
    source.execute("INSERT INTO orders VALUES (1, 'paid', 20, 'n', 's', 'e')")
    lockstep("extract", "flt.yaml")
    source.execute("UPDATE orders SET note = 'm' WHERE id = 1")
    stopped = lockstep("extract", "flt.yaml", code=4)
    assert stopped.error["code"] == "sink.unknown_value"
    assert "binlog_row_image = FULL" in stopped.error["remedy"]
    write(lockstep, (WHERE, "id > 0"))
    lockstep("snapshot", "flt.yaml")
    assert [(row["id"], row["note"], row["status"]) for row in exported(lockstep)] == [(1, "m", "paid")]


def test_a_truncate_and_rows_without_all_columns_pass_the_filter_and_the_masks(source: Any, lockstep: Any) -> None:
    write(lockstep, (WHERE, "id > 5"), ("columns:", "on_truncate: stage\n  columns:"))
    hashed = f"SHA2(CONCAT('{SALT}', email), 256)"

    def same() -> bool:
        lockstep("extract", "flt.yaml")
        source.execute(f"SELECT {SHOWN}, {hashed} FROM orders WHERE id > 5 ORDER BY id")
        return [tuple(row.values())[:5] for row in exported(lockstep)] == list(source.fetchall())

    source.execute("SET SESSION binlog_row_image = MINIMAL")
    for first in (0, 10):
        source.execute("TRUNCATE TABLE orders")
        for key in range(first, first + 20):
            source.execute("INSERT INTO orders VALUES (%s, 'paid', 20, NULL, 's', CONCAT('Ü', %s))", (key, key))
        source.execute("UPDATE orders SET note = 'n' WHERE id > 3")
        source.execute("UPDATE orders SET secret = 't', email = 'new' WHERE id IN (1, 11)")
        source.execute("UPDATE orders SET id = id + 100, amount = 3 WHERE id IN (12, 13)")
        source.execute("DELETE FROM orders WHERE id IN (4, 14, 112)")
        assert same()
    source.execute("TRUNCATE TABLE orders")
    assert same()


@ON_ONE
def test_a_condition_on_a_column_that_is_not_there_is_told_by_the_check_and_stops_at_first_sight(
    source: Any, lockstep: Any
) -> None:
    write(lockstep, (WHERE, "colour == 'red'"), ("targets:", "#"))
    assert "no column 'colour'" in lockstep("check", "flt.yaml", code=2).out
    source.execute("INSERT INTO orders VALUES (1, 'paid', 20, 'n', 's', 'e')")
    assert lockstep("extract", "flt.yaml", code=2).error["code"] == "config.invalid"
    write(lockstep)
    lockstep("extract", "flt.yaml")
    assert len(exported(lockstep)) == 1
    write(lockstep, (WHERE, "status = 'paid'"))
    refused = lockstep("check", "flt.yaml", code=2).error
    assert "tables.rows.0.where" in refused["what"]


@ON_MARIADB
def test_a_column_stays_masked_or_left_out_whatever_the_letter_case_of_its_name(source: Any, lockstep: Any) -> None:
    write(lockstep, ("targets:", "#"), ("rows: [", "# ["), ("  include:", "  on_unlogged_change: record\n  include:"))
    lockstep("extract", "flt.yaml")
    source.execute("ALTER TABLE orders RENAME COLUMN email TO Email, RENAME COLUMN secret TO SECRET")
    source.execute("INSERT INTO orders (id, secret, email) VALUES (1, 'hide me', 'a@x')")
    lockstep("extract", "flt.yaml")
    found = lockstep.exported("flt.orders", "--partial", file="flt.yaml").to_pylist()
    rows = [{name.lower(): value for name, value in row.items()} for row in found]
    source.execute(f"SELECT {HASHED} FROM orders WHERE id = 1".replace("email", "Email"))
    ((hashed,),) = source.fetchall()
    assert [(row["id"], row["email"]) for row in rows] == [(1, hashed)]
    assert all("secret" not in row for row in rows)


@ON_ONE
def test_a_mask_or_a_filter_that_matches_nothing_is_told_by_the_check(source: Any, lockstep: Any) -> None:
    write(lockstep, (r"flt\.orders\.email", r"flt\.order\.email"), (r"match: 'flt\.orders'", r"match: 'flt\.invoices'"))
    checked = lockstep("check", "flt.yaml", code=3).document["findings"]
    assert [
        finding["what"]
        for finding in checked
        if finding["code"] == "config.no_match" and "flt.orders.email" in finding["what"]
    ]
    assert [finding["status"] for finding in checked if "tables.rows" in finding["subject"]] == ["warn"]


def test_numbers_are_compared_as_the_server_compares_them(source: Any, lockstep: Any) -> None:
    where = "r > 0.1 or r in (0, 7) or d < 10 and d > -3.5 or d >= 12345678901234567.89"
    write(lockstep, (r"match: 'flt\.orders'", r"match: 'flt\.numbers'"), (WHERE, where), ("targets:", "#"))
    source.execute("CREATE TABLE numbers (id INT PRIMARY KEY, r FLOAT, d DECIMAL(45,5))")
    source.execute("INSERT INTO numbers VALUES (1, 0.1, NULL), (2, -0.0, NULL), (3, 0.05, NULL), (4, NULL, 9.5)")
    source.execute("INSERT INTO numbers VALUES (5, NULL, 100), (6, NULL, -20), (7, NULL, -3.49999), (8, 7, 11)")
    source.execute("INSERT INTO numbers VALUES (9, NULL, 12345678901234567.89), (10, NULL, 12345678901234567.88)")
    lockstep("extract", "flt.yaml")
    source.execute(f"SELECT id FROM numbers WHERE {where} ORDER BY id")
    assert [(number,) for number in lockstep.exported("flt.numbers", file="flt.yaml")["id"].to_pylist()] == list(
        source.fetchall()
    )


@ON_ONE
def test_a_processor_of_an_installed_package_changes_the_columns_first(source: Any, lockstep: Any) -> None:
    installed(ROOT / "examples" / "processor", lockstep.directory)
    use = "processors: [{match: '.*', use: tidy_email, options: {column: email}}]\n  columns: {}\n#"
    write(lockstep, (WHERE, "email_domain == 'x.org'"), ("columns:", use), ("targets:", "#"))
    source.execute("INSERT INTO orders (id, email) VALUES (1, ' Ann@X.org'), (2, 'bob@y.org'), (3, NULL)")
    source.execute("UPDATE orders SET email = 'BOB@x.ORG ' WHERE id = 2")
    environ = lockstep.environment | {"PYTHONPATH": f"{ROOT}:{lockstep.directory}"}
    subprocess.run(lockstep.command("extract", "flt.yaml"), cwd=lockstep.directory, env=environ, check=True)
    rows = exported(lockstep)
    assert [(row["id"], row["email"], row["email_domain"]) for row in rows] == [
        (1, "ann@x.org", "x.org"), (2, "bob@x.org", "x.org"),
    ]  # fmt: skip


def installed(package: Path, site: Path) -> None:
    """A package of modules put where Python finds it, as pip would."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    for module in package.glob("*.py"):
        (site / module.name).write_text(module.read_text())
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in options.items()) for group, options in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
