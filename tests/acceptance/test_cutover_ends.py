"""How a cutover ends: what is left of one that was not switched, and what a later command finishes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.moving_shop import FROM_MYSQL, REST, TABLES, execute, shop

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@FROM_MYSQL
@pytest.mark.timeout(600)
def test_a_way_back_that_has_run_writes_nothing_to_the_old_tables_unless_the_application_was_switched(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    """It reads Lockstep's own writes to the new tables, which are older than the application's to the old ones."""
    with shop(lockstep, *servers) as made:
        orders = f"{made.name}.orders"
        made.behave("exit 9", "attempts: 1")
        lockstep("run", "shop.yaml")
        assert made.cutover("run", "shop.yaml", code=4)["error"]["code"] == "cutover.unknown"
        lockstep("run", "shop_back.yaml", code=None)
        answered = lockstep("cutover", "resume", "shop.yaml", "--answer", "not-switched", code=3)
        assert "shop_back.yaml stays" in answered.err

        execute(made.source, f"UPDATE {orders} SET n = 5 WHERE id = 1000", f"DELETE FROM {orders} WHERE id = 1001")
        lockstep("run", "shop.yaml")
        execute(made.source, f"UPDATE {orders} SET n = 6 WHERE id = 1000", f"INSERT INTO {orders} VALUES (1001, 7)")
        kept = {1000: 6, 1001: 7, 1002: 2}
        for verb in (["run"], ["run", "--replay"]):
            refused = lockstep(*verb, "shop_back.yaml", code=3)
            assert json.loads(refused.out)["error"]["code"] == "target.fenced"
            assert made.old("orders") == kept
        assert made.cutover("abort", "shop.yaml")["state"] == "ROLLED_BACK"
        lockstep("run", "shop_back.yaml", code=3)
        assert made.old("orders") == kept
        lockstep("run", "shop.yaml")  # the fence around the new tables is down

        # A second cutover uses the same way back.
        made.behave("true", "attempts: 1")
        assert made.cutover("run", "shop.yaml")["state"] == "WATCH"
        execute(made.target, f"INSERT INTO {made.name}_0.orders_0 (id, n) VALUES (4, 4)")
        lockstep("run", "shop_back.yaml")
        assert made.old("orders") == made.new("orders") == kept | {4: 4}
        assert made.old("items") == made.new("items") == REST
        assert made.cutover("back", "shop.yaml")["state"] == "COMPLETE"
        for table in TABLES:
            assert made.old(table) == made.new(table)
