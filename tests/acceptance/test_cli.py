"""The command line on real servers: a first pipeline from nothing, and each refusal walked to its remedy's end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pymysql
import pytest

from tests.lab.forked_commands import ForkedCommands, Started

ORDERS = (
    "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(20) NOT NULL, amount DECIMAL(12,2), at DATETIME)"
)
AGAIN = '  - {name: again, connections: ["env:COPY"], tables: {"*": {}}}\n'
WEEK_US = 7 * 86_400 * 1_000_000
FIRST = "INSERT INTO orders VALUES (1,'new',9.99,'2026-01-01 10:00:00'), (2,'new',NULL,NULL), (3,'gone',1,NULL)"


@pytest.fixture
def shop(source_database: Any, lockstep: Any) -> Any:
    """A database with one table, its URL exported as SHOP, and a pipeline `shop.yaml` that starts now."""
    source_database.execute(ORDERS)
    lockstep.init(source_database.server, source_database.name)
    return source_database


def changes(shop: Any) -> None:
    shop.execute(
        FIRST,
        "UPDATE orders SET status='paid', amount=12.50 WHERE order_id=1",
        "DELETE FROM orders WHERE order_id=3",
        "UPDATE orders SET order_id=20 WHERE order_id=2",
    )


def rows_of(database: Any) -> list[tuple[Any, ...]]:
    return list(database.execute("SELECT order_id, status, amount, at FROM orders ORDER BY order_id"))


def exported_rows(shop: Any, lockstep: Any) -> list[tuple[Any, ...]]:
    rows = lockstep.exported(f"{shop.name}.orders").select(["order_id", "status", "amount", "at"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def failed(done: Any) -> dict[str, str]:
    """Code of each failed finding of a check -> the remedy that came first."""
    return {
        finding["code"]: finding["remedy"]
        for finding in reversed(done.document["findings"])
        if finding["status"] == "fail"
    }


def test_init_check_extract_and_export_give_the_table_of_the_source(shop: Any, lockstep: Any) -> None:
    assert lockstep("check", "shop.yaml").document["ok"] is True
    changes(shop)
    (extracted,) = lockstep("extract", "shop.yaml", "--until", "now").document["sources"]
    assert (extracted["rows"], extracted["done"]) == (6, True)
    rows = exported_rows(shop, lockstep)
    assert rows == rows_of(shop)
    assert rows[0][1:3] == ("paid", Decimal("12.50"))
    exported = pq.read_schema(lockstep.directory / "exported.parquet").names
    assert exported == ["order_id", "status", "amount", "at", "_cdc_seq", "_cdc_ts", "_cdc_literal", "_cdc_absent"]
    assert lockstep("check", "shop.yaml").document["ok"] is True


def test_a_table_that_appears_later_is_captured(source_database: Any, lockstep: Any) -> None:
    lockstep.environ["SHOP"] = source_database.server.url
    made = lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{source_database.name}\..*").document
    assert made["captured"] == []
    assert "no table matches yet" in made["warnings"][0]
    assert lockstep("check", "shop.yaml").document["ok"] is True
    source_database.execute(ORDERS, FIRST)
    lockstep("extract", "shop.yaml")
    assert exported_rows(source_database, lockstep) == rows_of(source_database)


def test_init_explains_every_table_that_it_leaves_out_and_keeps_the_password_out(
    source_database: Any, lockstep: Any
) -> None:
    source_database.execute(
        ORDERS,
        "CREATE TABLE log (line TEXT)",
        "CREATE TABLE reserved (id INT PRIMARY KEY, _cdc_op INT)",
        "CREATE TABLE `o'dd ``name` (a INT, b INT, PRIMARY KEY (b, a))",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE SEQUENCE numbers",
        "CREATE TABLE scratch_tmp (id INT PRIMARY KEY)",
        "CREATE VIEW v_orders AS SELECT 1",
    )
    lockstep.environ["SHOP"] = source_database.server.url
    include, exclude = rf"{source_database.name}\..*", r".*_tmp|.*\.v_.*"
    made = lockstep("init", "shop", "--source", "env:SHOP", "--include", include, "--exclude", exclude).document
    database = source_database.name
    assert {table["table"]: table["key"] for table in made["captured"]} == {
        f"{database}.orders": ["order_id"],
        f"{database}.o'dd `name": ["b", "a"],
        f"{database}.log": [],
    }
    left_out = {table["table"]: table["why"] for table in made["left_out"]}
    assert set(left_out) == {f"{database}.{name}" for name in ("reserved", "seen", "numbers")}
    text = (lockstep.directory / "shop.yaml").read_text()
    for name, why in left_out.items():
        assert why in text
        assert re.escape(name) in text or name in text
    assert source_database.server.password not in text
    checked = lockstep("check", "shop.yaml").document
    assert checked["ok"] is True
    # It knows the sequence that `init` has excluded by its name, and the view that the user has.
    assert [finding["what"] for finding in checked["findings"] if finding["subject"] == "tables.exclude"] == []


def test_init_gives_a_target_the_rows_of_a_table_without_a_key(shop: Any, target_database: Any, lockstep: Any) -> None:
    shop.execute("CREATE TABLE log (line TEXT)")
    target_database.execute("CREATE TABLE log (line TEXT)", ORDERS)
    assert "no key" not in str(lockstep("check", "shop.yaml").document)  # there is no target yet
    lockstep.environ["COPY"] = target_database.server.url
    include = rf"{shop.name}\..*"
    lockstep("init", "shop", "--source", "env:SHOP", "--include", include, "--target", "env:COPY", "--force")
    checked = lockstep("check", "shop.yaml").document
    assert checked["ok"] is True
    assert not [finding for finding in checked["findings"] if "no key" in finding["what"]]
    assert f"'{shop.name}.log': {{no_key: rows, on_new_column: add}}" in (lockstep.directory / "shop.yaml").read_text()


def test_an_include_that_matches_nothing_is_told_what_it_may_have_meant(shop: Any, lockstep: Any) -> None:
    meant = rf"{shop.name}.orders"
    for slip in ("orders", rf"{shop.name[:-1]}\..*", rf"{shop.name}\.order", rf"{shop.name.upper()}\.ORDERS"):
        arguments = ("init", "slip", "--source", "env:SHOP", "--include", slip)
        error = lockstep(*arguments, code=2).error
        assert error["code"] == "usage.argument"
        assert f"Did you mean {meant}" in error["what"], slip
        assert not (lockstep.directory / "slip.yaml").exists()
        text = (lockstep.directory / "shop.yaml").read_text()
        (lockstep.directory / "slip.yaml").write_text(text.replace(rf"{shop.name}\..*", slip))
        assert meant in failed_what(lockstep("check", "slip.yaml", code=3))["config.no_match"]
        (lockstep.directory / "slip.yaml").unlink()
    both = text.replace(rf"    - '{shop.name}\..*'", rf"    - '{shop.name}\..*'" + "\n    - 'orders'")
    (lockstep.directory / "both.yaml").write_text(both)
    found = lockstep("check", "both.yaml").document
    assert found["ok"] is True
    assert [finding["status"] for finding in found["findings"] if "'orders'" in finding["what"]] == ["warn"]


def failed_what(done: Any) -> dict[str, str]:
    """Code of each failed finding of a check -> what it says."""
    return {finding["code"]: finding["what"] for finding in done.document["findings"] if finding["status"] == "fail"}


def test_init_does_not_overwrite_a_file_unless_told(shop: Any, lockstep: Any) -> None:
    before = (lockstep.directory / "shop.yaml").read_text()
    arguments = ("init", "shop", "--source", "env:SHOP", "--include", ".*")
    assert lockstep(*arguments, code=2).error["code"] == "usage.output_file"
    assert (lockstep.directory / "shop.yaml").read_text() == before
    lockstep(*arguments, "--force")
    assert (lockstep.directory / "shop.yaml").read_text() != before


def test_init_never_takes_a_url_with_a_password(shop: Any, lockstep: Any) -> None:
    done = lockstep("init", "x", "--source", shop.server.url, "--include", ".*", code=2)
    assert done.error["code"] == "usage.argument"
    assert shop.server.password not in done.out + done.err


def test_sql_shows_every_change_and_the_state(shop: Any, lockstep: Any, commands: ForkedCommands) -> None:
    changes(shop)
    lockstep("extract", "shop.yaml")
    query = f"SELECT _cdc_op, count(*) FROM {shop.name}.orders_changes GROUP BY ALL ORDER BY ALL"
    assert lockstep("stage", "sql", "shop.yaml", query).document["rows"] == [["c", 3], ["d", 1], ["u", 2]]
    state = lockstep("stage", "sql", "shop.yaml", f"SELECT order_id FROM {shop.name}.orders ORDER BY 1").document
    assert state["rows"] == [[1], [20]]
    query = f"SELECT order_id, amount, NULL AS nothing, '' AS empty FROM {shop.name}.orders ORDER BY 1"
    assert lockstep("stage", "sql", "shop.yaml", query, "-o", "answer.csv").document["rows"] == 2
    lines = (lockstep.directory / "answer.csv").read_text().splitlines()
    assert lines == ["order_id,amount,nothing,empty", '1,12.50,,""', '20,,,""']
    assert lockstep("stage", "sql", "shop.yaml", query, "-o", "answer.csv", code=2).error["code"] == "usage.output_file"
    lockstep("stage", "export", "shop.yaml", f"{shop.name}.orders", "-o", "orders.csv")
    assert len((lockstep.directory / "orders.csv").read_text().splitlines()) == 3
    (export,) = lockstep("stage", "export", "shop.yaml", "--all", "-o", "every").document["tables"]
    assert (export["table"], export["rows"]) == (f"{shop.name}.orders", 2)
    assert [file.name for file in (lockstep.directory / "every").iterdir()] == [f"{shop.name}.orders.parquet"]
    limited = ("stage", "sql", "shop.yaml", query, "--limit", "1")
    shown = commands.run(*limited, directory=lockstep.directory, environ=lockstep.environment)
    assert ("12.50" in shown.out, " 20 " in shown.out) == (True, False)
    assert "1 of 2 rows; all: -o FILE, or --limit 2" in shown.err
    wrong = lockstep("stage", "sql", "shop.yaml", "SELEKT", code=2)
    assert wrong.error["code"] == "stage.sql"


def test_status_asks_neither_source_nor_target_and_one_that_is_away_is_said_once(shop: Any, lockstep: Any) -> None:
    assert lockstep("status", "shop.yaml", code=75).document["sources"] == [{"source": "shop", "position": None}]
    changes(shop)
    lockstep("extract", "shop.yaml")
    lockstep.environ["SHOP"] = "mysql://nobody@127.0.0.1:1"
    (source,) = lockstep("status", "shop.yaml").document["sources"]
    assert (source["rows"], source["holder"]) == (6, None)
    done = lockstep("extract", "shop.yaml", code=75)
    assert done.error["code"] == "connection.unreachable"
    assert "cannot be reached" not in done.err, "it is said once"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_in_good_order_when_a_signal_comes(shop: Any, lockstep: Any, number: int) -> None:
    with following(lockstep) as follower:
        changes(shop)
        follower.send(number)
        assert follower.wait() == 0
    assert "sources" in follower.document
    assert lockstep("status", "shop.yaml", code=None).document["sources"][0].get("holder") is None
    lockstep("extract", "shop.yaml")
    assert exported_rows(shop, lockstep) == rows_of(shop)


@contextlib.contextmanager
def following(lockstep: Any) -> Iterator[Started]:
    """`lockstep extract --follow`, which has begun to read."""
    with lockstep.started("extract", "shop.yaml", "--follow") as follower:
        follower.until(lambda: lockstep("status", "shop.yaml", code=None).document["sources"][0].get("holder"))
        yield follower


# Refusals, each with its remedy walked to the end


def test_what_extract_refuses_check_names_as_well_and_nothing_is_lost(shop: Any, lockstep: Any) -> None:
    file, url = lockstep.directory / "shop.yaml", lockstep.environ["SHOP"]
    text = file.read_text()
    (lockstep.directory / "blocked").write_text("a file")

    def refused(code: str) -> str:
        """Its remedy."""
        done = lockstep("extract", "shop.yaml", code=3)
        assert (done.error["code"], done.error["class"], "wr0ng" in done.out + done.err) == (code, "refused", False)
        assert code in failed(lockstep("check", "shop.yaml", code=3))
        return str(done.error["remedy"])

    lockstep.environ["SHOP"] = url.replace(shop.server.password, "wr0ng")
    refused("connection.denied")
    lockstep.environ["SHOP"] = url
    for pattern, other, code in (
        (r"server_id: \d+", "server_id: 1", "source.server_id_taken"),
        ("uri: '.*'", f"uri: 'file://{lockstep.directory}/blocked/stage'", "disk.not_permitted"),
    ):
        file.write_text(re.sub(pattern, other, text))
        refused(code)
    file.write_text(text)
    shop.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        asked = ("init", "other", "--source", "env:SHOP", "--include", rf"{shop.name}\..*")
        assert lockstep(*asked, code=3).error["code"] == "connection.setting"
        assert "SET GLOBAL binlog_format = 'ROW'" in refused("connection.setting")
    finally:
        shop.execute("SET GLOBAL binlog_format = 'ROW'")
    changes(shop)
    lockstep("extract", "shop.yaml")
    assert exported_rows(shop, lockstep) == rows_of(shop)


def test_missing_grants_are_named_by_init_check_and_extract_and_granting_them_helps(shop: Any, lockstep: Any) -> None:
    """Without SELECT an account sees no table: that is not called a source without tables."""
    account = "lockstep_cdc@'%'"
    select = f"SELECT ON `{shop.name}`.*"
    shop.execute(f"CREATE OR REPLACE USER {account} IDENTIFIED BY 'cdc'", f"GRANT {select} TO {account}")
    lockstep.environ["SHOP"] = f"mysql://lockstep_cdc:cdc@{shop.server.host}:{shop.server.port}"
    asked = ("init", "other", "--source", "env:SHOP", "--include", rf"{shop.name}\..*")
    try:
        missing = lockstep("extract", "shop.yaml", code=3).error
        assert missing["code"] == "connection.grant"
        assert failed(lockstep("check", "shop.yaml", code=3))["connection.grant"] == missing["remedy"]
        shop.execute(f"REVOKE {select} FROM {account}")
        for remedy in (missing["remedy"], ""):
            error = lockstep(*asked, code=3).error
            assert (error["code"], "env:SHOP" in error["remedy"]) == ("connection.grant", True)
            assert not (lockstep.directory / "other.yaml").exists()
            grant = re.search(r"GRANT [A-Z, ]+ ON \*\.\* TO", remedy or error["remedy"])
            assert grant is not None, error
            shop.execute(f"{grant[0]} {account}")
        assert [table["table"] for table in lockstep(*asked).document["captured"]] == [f"{shop.name}.orders"]
        lockstep("check", "shop.yaml")
        lockstep("extract", "shop.yaml")
    finally:
        shop.execute(f"DROP USER {account}")


def test_a_purged_start_position_is_data_at_risk_and_never_skipped(shop: Any, lockstep: Any) -> None:
    changes(shop)
    _purge(shop)
    done = lockstep("extract", "shop.yaml", code=4)
    assert (done.error["code"], done.error["class"]) == ("source.log_lost", "data at risk")
    assert "source.log_lost" in failed(lockstep("check", "shop.yaml", code=4))
    assert lockstep("stage", "ls", "shop.yaml").document["batches"] == []
    # The remedy where nothing is staged yet: choose a start that the server still has.
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{shop.name}\..*", "--force")
    shop.execute("INSERT INTO orders VALUES (4,'late',NULL,NULL)")
    (extracted,) = lockstep("extract", "shop.yaml").document["sources"]
    assert extracted["rows"] == 1


def _purge(shop: Any) -> None:
    """Leaves the newest file only. A stream that was cut off may hold an old one until the server notices."""
    shop.execute("FLUSH BINARY LOGS")
    while len(files := [row[0] for row in shop.execute("SHOW BINARY LOGS")]) > 1:
        for (number,) in shop.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'"):
            with contextlib.suppress(pymysql.err.MySQLError):  # it may have ended by itself
                shop.execute(f"KILL {number}")
        shop.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
        time.sleep(0.05)


def test_a_copied_pipeline_file_cannot_end_the_stream_of_the_pipeline_that_runs(shop: Any, lockstep: Any) -> None:
    """The same server_id and source, another name, stage and meta: neither check nor extract takes it for its own."""
    text = (lockstep.directory / "shop.yaml").read_text() + "\nlimits: {batch_age_s: 1}\n"
    (lockstep.directory / "shop.yaml").write_text(text)
    copy = text.replace("pipeline: shop", "pipeline: copied").replace("/.lockstep/shop/", "/.lockstep/copied/")
    (lockstep.directory / "copy.yaml").write_text(copy)
    with following(lockstep) as follower:
        changes(shop)
        follower.until(lambda: _staged_rows(lockstep) == 6)
        assert "source.server_id_taken" in failed(lockstep("check", "copy.yaml", code=3))
        assert lockstep("extract", "copy.yaml", code=3).error["code"] == "source.server_id_taken"
        own = lockstep("check", "shop.yaml").document
        assert "own extractor" in next(
            finding["what"] for finding in own["findings"] if "server_id" in finding["subject"]
        )
        shop.execute("INSERT INTO orders VALUES (4,'late',NULL,NULL)")
        follower.until(lambda: _staged_rows(lockstep) == 7)


def _staged_rows(lockstep: Any) -> int:
    return sum(batch["rows"] for batch in lockstep("stage", "ls", "shop.yaml").document["batches"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this account may mount one; elsewhere /dev/full's neighbour is not to be had."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_worth_a_retry_and_loses_nothing(shop: Any, small_disk: Path, lockstep: Any) -> None:
    file = lockstep.directory / "shop.yaml"
    file.write_text(re.sub(r"uri: '.*'", f"uri: 'file://{small_disk}/stage'", file.read_text()))
    changes(shop)
    lockstep("extract", "shop.yaml")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as full:
        while _room(full):
            pass
    shop.execute(f"INSERT INTO orders VALUES (50,'{'x' * 20}',1,NULL)", "DELETE FROM orders WHERE order_id=1")
    done = lockstep("extract", "shop.yaml", code=75)
    assert done.error["class"] == "retry later"
    assert done.error["code"] == "disk.error"
    assert done.error["code"] in failed(lockstep("check", "shop.yaml", code=75))
    filler.unlink()
    lockstep("extract", "shop.yaml")
    assert lockstep("stage", "verify", "shop.yaml", "--deep").document["ok"] is True
    assert exported_rows(shop, lockstep) == rows_of(shop)


def _room(full: Any) -> bool:
    try:
        return bool(full.write(b"\0" * 4096))
    except OSError:
        return False


def made_by_hand(text: str) -> str:
    """A pipeline file of `init` whose target's tables nobody but the operator creates or alters."""
    text = text.replace("on_missing_table: create", "on_missing_table: stop")
    return text.replace("{on_new_column: add}", "{}").replace("      '*': {no_key: rows, on_new_column: add}\n", "")


@pytest.fixture
def copied(shop: Any, target_database: Any, lockstep: Any) -> Any:
    """The shop's pipeline with a target: an empty database of the same name."""
    lockstep.environ["COPY"] = target_database.server.url
    arguments = ("init", "shop", "--source", "env:SHOP", "--include", rf"{shop.name}\..*", "--target", "env:COPY")
    lockstep(*arguments, "--force")
    # What is wrong at the target is for an operator to put right (else: tests/acceptance/test_target_tables.py).
    file = lockstep.directory / "shop.yaml"
    file.write_text(made_by_hand(file.read_text()))
    return target_database


def test_check_names_tables_that_do_not_fit_a_target_and_the_remedies_help(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    file = lockstep.directory / "shop.yaml"
    text, orders, log = file.read_text(), f"      '{shop.name}.orders': {{}}\n", "CREATE TABLE log (line TEXT)"
    assert text.count(orders) == 1, text
    assert "target.table" in failed(lockstep("check", "shop.yaml", code=3))
    copied.execute(ORDERS.replace(" PRIMARY KEY", " NOT NULL"), log)
    remedy = failed(lockstep("check", "shop.yaml", code=3))["target.definition"]
    alter = re.search(r"ALTER TABLE .*\)", remedy)
    assert alter is not None, remedy
    copied.execute(alter[0])
    assert lockstep("check", "shop.yaml").document["ok"] is True

    shop.execute(log)
    file.write_text(text.replace(orders, f"{orders}      {shop.name}.log: {{}}\n"))
    assert "no_key: rows" in failed(lockstep("check", "shop.yaml", code=3))["config.table_rule"]
    file.write_text(text.replace(orders, f"{orders}      {shop.name}.log: {{no_key: rows}}\n"))
    assert "has no key" not in str(lockstep("check", "shop.yaml").document)

    shop.execute("CREATE TABLE orders_b (code INT PRIMARY KEY, order_id INT NOT NULL)")
    file.write_text(f"{text}routes: [{{match: '.*orders.*', to: '{shop.name}.orders'}}]\n")
    assert "stage.key" in failed(lockstep("check", "shop.yaml", code=3))


def test_a_target_that_is_captured_itself_is_refused(shop: Any, lockstep: Any) -> None:
    lockstep.environ["COPY"] = lockstep.environ["SHOP"]
    include = rf"{shop.name}\..*"
    lockstep("init", "shop", "--source", "env:SHOP", "--include", include, "--target", "env:COPY", "--force")
    assert "check.loop" in failed(lockstep("check", "shop.yaml", code=3))


@pytest.mark.spark
def test_the_whole_line_runs_without_airflow_and_a_second_run_changes_nothing(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    copied.execute(ORDERS)
    changes(shop)
    done = lockstep("run", "shop.yaml", "--until", "now").document
    (entry,) = done["ledgers"]
    assert (entry["staged_rows"], entry["key_changes"], entry["problems"]) == (6, 1, [])
    assert rows_of(copied) == rows_of(shop)
    again = lockstep("run", "shop.yaml").document
    assert again["rows"] == 0
    assert sum(entry["staged_rows"] for entry in again["ledgers"]) == 0
    assert rows_of(copied) == rows_of(shop)
    (target,) = lockstep("status", "shop.yaml", code=None).document["targets"]
    assert target["pending"] == {"batches": 0, "rows": 0}
    (layout,) = lockstep("target", "layout", "shop.yaml").document["layouts"]
    assert (layout["table"], layout["written"], layout["now"]) == (f"{shop.name}.orders", "one table", "one table")
    orders = f"{shop.name}.orders"
    assert lockstep("target", "fence", "shop.yaml", "--raise", " ", code=2).error["code"] == "usage.argument"
    typo = lockstep("target", "fence", "shop.yaml", "--raise", "switched", "--table", "order", code=2)
    assert (typo.error["code"], orders in typo.error["remedy"]) == ("usage.unknown_name", True)
    (fence,) = lockstep("target", "fence", "shop.yaml", "--raise", "switched").document["fences"]
    assert (fence["table"], fence["fence"]) == (orders, "switched")
    assert "target.fenced" in failed(lockstep("check", "shop.yaml", code=3))
    shop.execute("UPDATE orders SET status = 'late'")
    assert lockstep("run", "shop.yaml", code=3).error["code"] == "target.fenced"
    assert rows_of(copied) != rows_of(shop)
    (fence,) = lockstep("target", "fence", "shop.yaml", "--lower").document["fences"]
    assert fence["fence"] is None
    lockstep("run", "shop.yaml")
    assert rows_of(copied) == rows_of(shop)


@pytest.mark.spark
def test_rows_that_a_target_does_not_take_are_set_aside_and_requeued_once_it_does(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    copied.execute(ORDERS.replace("VARCHAR(20)", "VARCHAR(3)"))
    assert "target.definition" in failed(lockstep("check", "shop.yaml", code=3))
    file = lockstep.directory / "shop.yaml"
    rule = 'tables: {"*": {on_row_error: quarantine, guard: {store: table}}}'
    target = f'targets:\n  - {{name: copy, connections: ["env:COPY"], {rule}}}\n'
    file.write_text(re.sub(r"(?ms)^targets:.*?(?=^\S|\Z)", target, file.read_text()))
    assert lockstep("check", "shop.yaml").document["ok"] is True
    changes(shop)  # of the rows that are left, one has 'new', the other 'paid'
    done = lockstep("run", "shop.yaml").document
    (entry,) = done["ledgers"]
    assert (entry["quarantined"], entry["problems"]) == (1, [])
    assert copied.execute("SELECT status FROM orders") == [("new",)]
    (aside,) = (Path(lockstep("stage", "ls", "shop.yaml").document["stage"].removeprefix("file://"))).glob(
        f"runs/{done['run_id']}/*/rejected/quarantine/target=copy/cdc_table=*/*.parquet"
    )
    (row,) = pq.read_table(aside).to_pylist()
    assert (row["status"], "status" in row["_cdc_reason"]) == ("paid", True)
    assert lockstep("run", "shop.yaml", "--requeue", "nobody", code=2).error["code"] == "usage.argument"
    first = lockstep("status", "shop.yaml", code=4).document["problems"][0]
    assert (first["code"], done["run_id"] in first["remedy"]) == ("target.row_error", True)
    shop.execute("UPDATE orders SET status = 'ok' WHERE status = 'paid'")
    lockstep("run", "shop.yaml")
    assert lockstep("status", "shop.yaml").document["problems"] == []  # something newer has taken its place
    shop.execute("UPDATE orders SET status = 'paid' WHERE status = 'ok'")
    done = lockstep("run", "shop.yaml").document
    lockstep("status", "shop.yaml", code=4)
    copied.execute("ALTER TABLE orders MODIFY status VARCHAR(20) NOT NULL")
    (again,) = lockstep("run", "shop.yaml", "--requeue", done["run_id"]).document["ledgers"]
    assert (again["quarantined"], again["written"], again["problems"]) == (0, 1, [])
    assert lockstep("status", "shop.yaml").document["problems"] == []
    assert rows_of(copied) == rows_of(shop)


def make_older(lockstep: Any, batches: Sequence[str]) -> None:
    """By a week. The clock is not ours to set; the ends of windows are."""
    stage = Path(lockstep("stage", "ls", "shop.yaml").document["stage"].removeprefix("file://"))
    for batch in batches:
        path = stage / f"manifests/{batch}.json"
        path.write_text(
            re.sub(
                r'"window_end_us": (\d+)', lambda found: f'"window_end_us": {int(found[1]) - WEEK_US}', path.read_text()
            )
        )


def test_a_purge_keeps_the_newest_batch_and_readers_of_the_state_name_the_horizon(shop: Any, lockstep: Any) -> None:
    for number in range(4):
        shop.execute(f"INSERT INTO orders VALUES ({number},'old',1,NULL)")
        lockstep("extract", "shop.yaml")
    batches = lockstep("stage", "ls", "shop.yaml").document["batches"]
    assert [batch["rows"] for batch in batches][:4] == [1, 1, 1, 1]
    make_older(lockstep, [batch["batch"] for batch in batches[:3]])
    assert lockstep("stage", "purge", "shop.yaml", code=2).error["code"] == "usage.argument"
    assert lockstep("stage", "purge", "shop.yaml", "--older-than", "soon", code=2).error["code"] == "usage.argument"
    assert lockstep("stage", "purge", "shop.yaml", "--older-than", "4w").document["sources"][0]["batches"] == 0
    age = ("--older-than", "6d")
    (dry,) = lockstep("stage", "purge", "shop.yaml", *age, "--dry-run").document["sources"]
    (done,) = lockstep("stage", "purge", "shop.yaml", *age).document["sources"]
    assert done == dry
    assert (done["batches"], done["rows"], done["horizon"]) == (3, 3, batches[3]["batch"])
    left = lockstep("stage", "ls", "shop.yaml").document["batches"]
    assert left == batches[3:]
    assert lockstep("stage", "verify", "shop.yaml", "--deep").document["ok"] is True

    table = f"{shop.name}.orders"
    error = lockstep("stage", "export", "shop.yaml", table, "-o", "x.parquet", code=3).error
    assert (error["code"], batches[3]["begin"] in error["what"]) == ("stage.partial", True)
    since = lockstep("stage", "export", "shop.yaml", table, "-o", "x.parquet", "--since-horizon").document
    assert since["rows"] == 1
    error = lockstep("stage", "export", "shop.yaml", table, "-o", "x.json", "--since-horizon", code=2).error
    assert (error["code"], (lockstep.directory / "x.json").exists()) == ("usage.argument", False)
    query = f'SELECT count(*) FROM "{table}{{}}"'
    assert lockstep("stage", "sql", "shop.yaml", query.format("_changes")).document["rows"] == [[1]]
    refused = lockstep("stage", "sql", "shop.yaml", query.format(""), code=3).error
    assert (refused["code"], "were purged" in refused["what"]) == ("stage.partial", True)
    shop.execute("INSERT INTO orders VALUES (77,'later',1,NULL)")
    assert lockstep("extract", "shop.yaml").document["sources"][0]["rows"] == 1
    assert lockstep("stage", "verify", "shop.yaml").document["ok"] is True


def test_the_options_of_a_replay_belong_to_a_replay_of_one_target(copied: Any, lockstep: Any) -> None:
    file = lockstep.directory / "shop.yaml"
    file.write_text(file.read_text().replace("targets:\n", f"targets:\n{AGAIN}"))
    for wrong in (["--replay"], ["--table", "orders"], ["--replay", "--target", "again", "--from", "yesterday"]):
        assert lockstep("run", "shop.yaml", *wrong, code=2).error["code"] == "usage.argument"
    done = lockstep("run", "shop.yaml", "--replay", "--target", "again", "--from", "none/1", code=2)
    assert done.error["code"] == "usage.argument"


def test_a_run_names_all_that_is_wrong_at_the_target_before_spark_starts_and_the_remedies_help(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    shop.execute("CREATE TABLE wide (id INT PRIMARY KEY, v VARCHAR(9))", "CREATE TABLE more (id INT PRIMARY KEY)")
    lockstep(
        "init", "shop", "--source", "env:SHOP", "--include", rf"{shop.name}\..*", "--target", "env:COPY", "--force"
    )
    file = lockstep.directory / "shop.yaml"
    file.write_text(made_by_hand(file.read_text()))
    changes(shop)
    shop.execute("INSERT INTO wide VALUES (1, 'a  ')", "INSERT INTO more VALUES (1)")
    lockstep("extract", "shop.yaml")
    copied.execute("CREATE TABLE wide (id INT PRIMARY KEY, v CHAR(9))")
    for _ in range(2):
        done = lockstep("run", "shop.yaml", "--staged", code=3)
        assert done.error["code"] == "target.several"
        for name in ("orders does not exist", "more does not exist", "cuts spaces off the end"):
            assert name in done.error["what"]
        found = failed(lockstep("check", "shop.yaml", code=3))
        assert found.keys() == {"target.table", "target.definition"}
    copied.execute("SET GLOBAL local_infile = OFF")
    try:
        found = lockstep("check", "shop.yaml", code=3).document["findings"]
    finally:
        copied.execute("SET GLOBAL local_infile = ON")
    codes = [finding["code"] for finding in found if finding["status"] == "fail"]
    assert codes.count("connection.setting") == 1
    assert {*codes} == {"connection.setting", "target.table", "target.definition"}
    remedy = re.split(r"; (?=\(\d\) )", done.error["remedy"])
    for part in remedy:
        statement = re.search(r"(ALTER TABLE .*) \(target", part)
        assert statement is not None or "`lockstep target create shop.yaml`" in part, part
        if statement is not None:
            copied.execute(statement[1])
    lockstep("target", "create", "shop.yaml")
    assert lockstep("check", "shop.yaml").document["ok"] is True
    (target,) = lockstep("status", "shop.yaml", code=3).document["targets"]  # the failed run is shown first
    assert target["records"].get("COMMITTED", {"batches": 0})["batches"] == 0


def test_check_names_the_privileges_that_an_account_lacks_and_the_grant_helps(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    copied.execute(ORDERS)
    copied.execute("CREATE OR REPLACE USER reader IDENTIFIED BY 'x'")
    try:
        lockstep.environ["COPY"] = re.sub("//.*@", "//reader:x@", lockstep.environ["COPY"])
        grant = f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES ON `{shop.name}`.* TO "
        assert grant + "'reader'@'%'" in failed(lockstep("check", "shop.yaml", code=3))["connection.grant"]
        assert grant + "'reader'@'%'" in lockstep("target", "create", "shop.yaml", code=3).error["remedy"]
        copied.execute(f"GRANT SELECT, DELETE, CREATE TEMPORARY TABLES ON `{shop.name}`.* TO reader")
        remedy = failed(lockstep("check", "shop.yaml", code=3))["connection.grant"]
        assert "GRANT INSERT, UPDATE, CREATE, ALTER ON" in remedy
        copied.execute(remedy.partition(" (target")[0])
        assert lockstep("check", "shop.yaml").document["ok"] is True
    finally:
        copied.execute("DROP USER reader")


def test_a_read_only_target_is_a_reason_to_try_again_and_no_missing_grant(
    shop: Any, copied: Any, lockstep: Any
) -> None:
    changes(shop)
    copied.execute(ORDERS)
    lockstep("extract", "shop.yaml")
    copied.execute("CREATE OR REPLACE USER writer IDENTIFIED BY 'x'")
    copied.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES ON *.* TO writer")
    lockstep.environ["COPY"] = re.sub("//.*@", "//writer:x@", lockstep.environ["COPY"])
    try:
        copied.execute("SET GLOBAL read_only = 1")
        for command in (("check", "shop.yaml"), ("run", "shop.yaml", "--staged")):
            done = lockstep(*command, code=75)
            assert "connection.unreachable" in done.out
        copied.execute("SET GLOBAL read_only = 0")
        assert lockstep("check", "shop.yaml").document["ok"] is True
    finally:
        copied.execute("SET GLOBAL read_only = 0")
        copied.execute("DROP USER writer")
