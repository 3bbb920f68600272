"""What a cut names is the database at its position, whoever runs, purges or drops tables in between."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cdc_core.operations import pipeline_run
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.apply.retention import purge
from cdc_core.operations.lake.maintain import maintain
from spark_jobs.driver import Driver
from tests.acceptance.test_lake import DATABASE, Shop


@pytest.fixture
def shop(lockstep: Any, mariadb: Any) -> Shop:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    made = Shop(lockstep, mariadb)
    made.sql(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)",
    )  # fmt: skip
    return made


def cut(shop: Shop) -> dict[str, dict[str, Any]]:
    return {table["mirror"]: table for table in shop.lockstep("lake", "at", shop.file).document["tables"]}


def require_newest(shop: Shop) -> None:
    """The newest cut has what readers see."""
    for mirror, table in cut(shop).items():
        seen = shop.catalog.load_table(mirror).current_snapshot()
        assert (table["snapshot"], table["lacks"]) == (seen and seen.snapshot_id, []), mirror


def test_a_replay_that_changes_nothing_names_no_snapshot_that_a_run_beside_it_has_replaced(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run()
    commit, refused = pipeline_run.commit, list[str]()

    def late(*given: Any) -> Any:
        if not refused:
            shop.sql("UPDATE a SET v = 2")
            shop.run()
        return commit(*given)

    monkeypatch.setattr(pipeline_run, "commit", late)
    with shop.lockstep.opened() as ready, Driver(ready.pipeline, ready.store, master="local[1]") as spark:
        with pytest.raises(Exception, match="has a newer snapshot than the run is based on") as error:
            pipeline_run.replay(ready, spark, Selection("lake"))
        refused.append(str(error.value))
        require_newest(shop)
        pipeline_run.replay(ready, spark, Selection("lake"))
    require_newest(shop)


def test_a_cut_is_made_of_the_last_one_also_where_a_clock_steps_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run()
    shop.sql("UPDATE a SET v = 2")
    commit = pipeline_run.commit

    def earlier(opened: Any, *given: Any) -> Any:
        now_us = type(opened.meta).now_us
        with monkeypatch.context() as clock:
            clock.setattr(type(opened.meta), "now_us", lambda meta: now_us(meta) - 60_000_000)
            return commit(opened, *given)

    with monkeypatch.context() as patched, shop.lockstep.opened() as ready:
        patched.setattr(pipeline_run, "commit", earlier)
        with Driver(ready.pipeline, ready.store, master="local[1]") as spark:
            pipeline_run.run(ready, spark, "cli", ["lake"])
    require_newest(shop)
    shop.sql("UPDATE b SET v = 2")
    shop.run()
    require_newest(shop)


def test_a_mirror_that_no_run_has_filled_lacks_the_changes_that_were_purged(shop: Shop) -> None:
    def take(*tables: str) -> None:
        document = yaml.safe_load(shop.file.read_text())
        (target,) = document["targets"]
        target["tables"] = dict.fromkeys(tables, next(iter(target["tables"].values())))
        shop.file.write_text(yaml.safe_dump(document))

    take(f"{DATABASE}.a")
    shop.run()
    for statement in ("UPDATE b SET v = 2", "UPDATE a SET v = 2", "UPDATE a SET v = 3"):
        shop.sql(statement)
        shop.run()
    with shop.lockstep.opened() as ready:
        assert purge(ready, cutoff_us=1 << 61, forget_us=1 << 61).forgotten_batches > 0
    take("*")
    shop.lockstep("target", "create", shop.file)
    shop.sql("UPDATE a SET v = 4")
    shop.run()
    (line,) = cut(shop)["shop.b"]["lacks"]
    assert line.startswith("what was purged before ")
    shop.lockstep("snapshot", shop.file, f"{DATABASE}.b")
    shop.run()
    shop.require_equal("a", "b")
    require_newest(shop)


def test_a_cut_is_readable_without_a_mirror_that_somebody_has_dropped(shop: Shop) -> None:
    shop.run()
    for name in ("b", "b__deleted"):
        shop.catalog.drop_table(f"shop.{name}")
    found = cut(shop)
    assert (found["shop.a"]["lacks"], bool(found["shop.a"]["sql"])) == ([], True)
    assert (len(found["shop.b"]["lacks"]), found["shop.b"]["sql"]) == (1, None)
    shop.lockstep("target", "create", shop.file)
    assert cut(shop) == found
    for name in ("b", "b__deleted"):
        shop.catalog.drop_table(f"shop.{name}")
    assert shop.lockstep("lake", "maintain", shop.file).document["problems"] == []
    theirs = shop.catalog.create_table("shop.b", shop.catalog.load_table("shop.a").schema())
    (problem,) = shop.lockstep("lake", "maintain", shop.file).document["problems"]
    assert "was not made by Lockstep" in problem
    assert shop.catalog.load_table("shop.b").metadata == theirs.metadata
    shop.catalog.drop_table("shop.a")
    assert shop.lockstep("lake", "at", shop.file, code=3).error["code"] == "stage.as_of"


def test_a_table_whose_name_has_a_dot_is_in_the_cut_and_maintained(shop: Shop) -> None:
    shop.sql("CREATE TABLE `a.b` (id INT PRIMARY KEY, v INT)", "INSERT INTO `a.b` VALUES (1, 1)")
    shop.run()
    found = cut(shop)["shop.a.b"]
    assert found["sql"] == f"SELECT * FROM lake.shop.`a.b` VERSION AS OF {found['snapshot']}"
    script = shop.lockstep("lake", "at", shop.file, "--views", "then").document["script"]
    assert f"CREATE OR REPLACE VIEW then.`a.b` AS {found['sql']};" in script
    assert "a.b" in [
        table["name"] for table in shop.lockstep("dbt", "sources", shop.file).document["sources"][0]["tables"]
    ]
    shop.sql("UPDATE `a.b` SET v = 2")
    shop.run()
    table = shop.catalog.load_table(("shop", "a.b"))
    assert len(table.metadata.refs) == 1
    with shop.lockstep.opened() as ready:
        later = type(ready.meta).now_us(ready.meta) + 7_200_000_000
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr(type(ready.meta), "now_us", lambda meta: later)
            maintain(ready, ready.pipeline.targets[0])
    assert len(shop.catalog.load_table(("shop", "a.b")).metadata.snapshots) < len(table.metadata.snapshots)
