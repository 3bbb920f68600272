"""More shards for a target: before a cutover from the stage alone, after one from the shards themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.acceptance.moving_shop import always
from tests.acceptance.reshard_shop import NOWHERE, TABLES, Shop, shop

pytestmark = pytest.mark.spark


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_target_with_more_shards_is_filled_from_the_stage_alone_and_the_application_is_led_there(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made.write()
        made("run", "shop.yaml")
        made.add_layout()
        # Neither the source nor the old shards can be reached.
        staged = ("run", "shop.yaml", "--staged", "--target", "shards_4x4")
        made(*staged, SOURCE=NOWHERE, SHARDS=NOWHERE)
        for table in TABLES:
            assert made.in_new(table) == made.at_source(table) == made.in_old(table)
        made.write()
        assert sorted(target["target"] for target in made("run", "shop.yaml")["targets"]) == ["shards", "shards_4x4"]
        assert made("verify", "shop.yaml", "--target", "shards_4x4")["equal"] is True
        assert made(*staged)["targets"] == []  # again: nothing is left to do
        there = made("cutover", "run", "shop.yaml", "--target", "shards_4x4")
        assert there["state"] == "WATCH"
        made.write(made.target, made.new_place)
        made("run", "shop_back.yaml")
        made("run", "shop_back.yaml")
        assert made("verify", "shop_back.yaml")["equal"] is True
        for table in TABLES:
            assert made.at_source(table) == made.in_new(table) != made.in_old(table)
        assert made("cutover", "back", "shop.yaml")["state"] == "COMPLETE"


@pytest.mark.matrix
@always("mariadb to mysql9")
@pytest.mark.timeout(900)
def test_each_former_shard_may_be_moved_and_led_back_by_itself(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made("cutover", "run", "shop.yaml")
        made.write(made.target, made.old_place)
        to = ("shop.yaml", "--to", "4x4", "--shards")
        assert made("reshard", *to, "4", code=2)["error"]["code"] == "usage.argument"
        files = [Path(made("reshard", *to, shards)["file"]).name for shards in ("0", "1-3")]
        assert files == ["shop_4x4_s0.yaml", "shop_4x4_s1_3.yaml"]
        made.hook(*files)
        first, rest = files
        for file in (first, rest):
            made("run", file)
            assert made("verify", file)["equal"] is True
        assert made("cutover", "run", first)["state"] == "WATCH"
        # The first part has taken shard 0: a pipeline for all of them cannot write there.
        whole = Path(made("reshard", *to[:-1])["file"]).name
        refused = made("run", whole, code=3)["error"]
        assert "target.fenced" in refused["remedy"], refused

        def place(table: str, key: int) -> str:
            return made.new_place(table, key) if key % 4 == 0 else made.old_place(table, key)

        made.write(made.target, place)
        for file in (rest, back_of(first), rest):
            made("run", file)
        same(made, "in_old", "in_new")
        assert made("cutover", "run", rest)["state"] == "WATCH"
        made.write(made.target, made.new_place)
        for file in (back_of(first), back_of(rest)):
            made("run", file)
        same(made, "in_old", "in_new")
        assert made("verify", back_of(first))["equal"] is True
        assert made("cutover", "back", first)["state"] == "COMPLETE"
        # The other shards stay where they are.
        assert made("cutover", "status", rest)["state"] == "WATCH"
        made.write(made.target, lambda table, key: (made.old_place if key % 4 == 0 else made.new_place)(table, key))
        for file in (first, back_of(rest)):
            made("run", file)
        same(made, "in_old", "in_new")


def back_of(file: str) -> str:
    return file.replace(".yaml", "_back.yaml")


@pytest.mark.matrix
@always("mysql9 to mariadb")
@pytest.mark.timeout(900)
def test_an_application_goes_to_more_shards_and_all_the_way_back_and_there_again(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """Rows that were deleted in one place are inserted in another one, although the former server's clock was ahead."""
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made.source.run(f"DELETE FROM {made.name}.orders WHERE id IN (50, 51)")
        made("run", "shop.yaml")
        ahead(made, made.target, made.old_place("orders", 50))
        made("cutover", "run", "shop.yaml")
        made.write(made.target, made.old_place)
        done = made("reshard", "shop.yaml", "--to", "4x4")
        assert made("reshard", "shop.yaml", "--to", "4x4") == done
        # The command of the former pipeline would lead the application to the former shards.
        assert made("cutover", "plan", "shop_4x4.yaml", code=2)["error"]["code"] == "config.invalid"
        made.hook("shop_4x4.yaml")
        made("run", "shop_4x4.yaml")
        assert made("verify", "shop_4x4.yaml")["equal"] is True
        made("run", "shop_back.yaml")
        assert made("cutover", "rehearse", "shop_back.yaml")["state"] == "ROLLED_BACK"
        assert made("cutover", "run", "shop_4x4.yaml")["state"] == "WATCH"
        # From the former shards nobody is led back, nor are they opened.
        assert made("cutover", "abort", "shop_back.yaml")["state"] == "ROLLED_BACK"
        assert made("cutover", "back", "shop.yaml", code=3)["error"]["code"] == "cutover.left_before"
        assert made("cutover", "abort", "shop_back.yaml")["state"] == "ROLLED_BACK"
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            insert(made, made.target, made.old_place, 50)
        insert(made, made.target, made.new_place, 50)
        made.target.run(f"DELETE FROM {made.new_place('orders', 60)} WHERE id = 60")
        made("run", "shop_4x4_back.yaml")
        same(made, "in_old", "in_new")
        ahead(made, made.target, made.old_place("orders", 60))
        assert made("cutover", "back", "shop_4x4.yaml")["state"] == "COMPLETE"
        insert(made, made.target, made.old_place, 51)
        made.target.run(f"DELETE FROM {made.old_place('orders', 61)} WHERE id = 61")
        made("run", "shop_back.yaml")
        same(made, "in_old", "at_source")
        ahead(made, made.source, f"{made.name}.orders")
        assert made("cutover", "back", "shop.yaml")["state"] == "COMPLETE"
        made.write()
        insert(made, made.source, lambda table, _: f"{made.name}.{table}", 60, 61)
        made.source.run(f"DELETE FROM {made.name}.orders WHERE id IN (50, 51)")
        made("run", "shop.yaml")
        same(made, "at_source", "in_old")
        made("run", "shop_4x4.yaml")
        same(made, "in_old", "in_new")
        # The way back from there is over: it would carry old rows to shards that the application has left.
        assert made("run", "shop_4x4_back.yaml", code=3)["error"]["code"] == "config.table_rule"
        # There again: each pipeline finds what it has left.
        ahead(made, made.target, made.old_place("orders", 50))
        assert made("cutover", "run", "shop.yaml")["state"] == "WATCH"
        insert(made, made.target, made.old_place, 51)
        made("run", "shop_4x4.yaml")
        assert made("cutover", "run", "shop_4x4.yaml")["state"] == "WATCH"
        insert(made, made.target, made.new_place, 50)
        made("run", "shop_4x4_back.yaml")
        same(made, "in_old", "in_new")
        made("run", "shop_back.yaml")
        same(made, "in_old", "at_source")


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_an_application_comes_back_from_other_tables_and_another_target_than_the_first_time(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """There and back; there with one more table, and back; and to another target, and back."""
    with shop(lockstep, *servers) as made:
        back = made.folder / "shop_back.yaml"

        def there_and_back(place: Any, *target: str) -> None:
            if back.exists():
                differs = made("cutover", "run", "shop.yaml", *target, code=3)["error"]
                assert (differs["code"], "remove this file" in differs["remedy"]) == ("cutover.way_back_differs", True)
                back.unlink()
            assert made("cutover", "run", "shop.yaml", *target)["state"] == "WATCH"
            assert not made("cutover", "status", "shop.yaml")["way_back"]["ready"]
            made.write(made.target, place)
            made("run", back.name)
            assert not made("cutover", "status", "shop.yaml")["way_back"]["ready"]  # what was verified is older
            assert made("verify", back.name)["equal"] is True
            assert made("cutover", "status", "shop.yaml")["way_back"]["ready"]
            assert made("cutover", "back", "shop.yaml")["state"] == "COMPLETE"

        made("run", "shop.yaml")
        there_and_back(made.old_place)
        made.write()
        made.source.run(f"CREATE TABLE {made.name}.more (id INT PRIMARY KEY, n BIGINT NOT NULL)",
                        f"INSERT INTO {made.name}.more VALUES (1, 1), (2, 2)")  # fmt: skip
        made.file.write_text(made.file.read_text().replace("(orders|items)", "(orders|items|more)"))
        made("run", "shop.yaml")
        there_and_back(lambda table, key: made.old_place("more" if table == "items" else table, key))
        assert made.at_source("more") == made.in_old("more")
        made.write()
        made.add_layout()
        made("run", "shop.yaml", "--staged", "--target", "shards_4x4")
        there_and_back(made.new_place, "--target", "shards_4x4")
        same(made, "at_source", "in_new")


def insert(made: Shop, server: Any, place: Any, *keys: int) -> None:
    for key in keys:
        server.run(f"INSERT INTO {place('orders', key)} (id, n) VALUES ({key}, 1)")


def ahead(made: Shop, server: Any, table: str) -> None:
    """The tombstones of the table are as a server would have made them whose clock is an hour ahead."""
    database, name = table.split(".")
    moment = f"CONV(HEX(SUBSTRING(_cdc_version, 1, 8)), 16, 10) + {3_600_000_000}"
    changed = server.run(
        f"UPDATE {database}._lockstep_tombstone_{name} "
        f"SET _cdc_version = CONCAT(UNHEX(LPAD(HEX({moment}), 16, '0')), SUBSTRING(_cdc_version, 9))",
        f"SELECT COUNT(*) FROM {database}._lockstep_tombstone_{name}",
    )
    assert changed[0][0]


def same(made: Shop, *places: str) -> None:
    for table in TABLES:
        rows = [getattr(made, place)(table) for place in places]
        assert all(row == rows[0] for row in rows), table


@pytest.mark.matrix
@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_row_in_the_wrong_shard_stops_the_run_and_is_named(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made("cutover", "run", "shop.yaml")
        made("reshard", "shop.yaml", "--to", "4x4")
        made("run", "shop_4x4.yaml")
        made.target.run(f"INSERT INTO {made.old_place('orders', 1)} (id, n) VALUES (402, 1)")
        error = made("run", "shop_4x4.yaml", code=4)["error"]
        assert error["code"] == "target.foreign_row"
        assert "id = 402 belongs to shard 2 of 4, and was in shard 1" in error["what"]
        assert 402 not in dict(made.in_new("orders"))
        assert made("reshard", "shop.yaml", "--to", "3x3", code=3)["error"]["code"] == "reshard.layout"


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_meta_database_that_was_rebuilt_lets_no_run_use_another_sharding(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        (made.folder / "meta.db").unlink()
        made("meta", "rebuild", "shop.yaml")
        made.write()
        text = made.file.read_text()
        made.file.write_text(text.replace("tables: 2}", "tables: 4}"))
        assert made("run", "shop.yaml", code=4)["error"]["code"] == "target.layout"
        for table in TABLES:
            for place in (f"{made.name}_{d}.{table}_{t}" for d in range(2) for t in (2, 3)):
                assert made.rows(made.target, [place]) == []
        layouts = made("target", "layout", "shop.yaml")["layouts"]
        assert ("shard 1 of 4 by mod(id)", "shard 1 of 8 by mod(id)") in [
            (layout["written"], layout["now"]) for layout in layouts
        ]
        made.file.write_text(text)
        made("run", "shop.yaml")
        for table in TABLES:
            assert made.in_old(table) == made.at_source(table)
