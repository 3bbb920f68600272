"""What a cutover's process does from another thread when the budget is over (cdc_core/operations/cutover/moving.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cdc_core.config import CutoverOptions
from cdc_core.meta import Cutover, Lease
from cdc_core.operations.cutover.moving import Moving


def test_the_application_is_released_whatever_keeps_its_gates_from_being_opened(tmp_path: Path) -> None:
    said: list[str] = []
    work: Any = SimpleNamespace(
        options=CutoverOptions(stop_with=f"touch {tmp_path}/released"),
        opened=SimpleNamespace(name="shop", progress=SimpleNamespace(note=said.append)),
        targets=[SimpleNamespace(name="t")],
        back=False,
    )
    moving = Moving(work, Lease("shop", "shop", "a test", 1, 0), Cutover("c1", "shop", "shop_back", "ARMED"))
    moving.cutover = Cutover("c1", "shop", "shop_back", "ARMED", details={"arming": moving.token})  # and no tables
    moving.let_continue()
    assert (tmp_path / "released").exists()
    assert said == ["gates may be closed: 'tables'"]
