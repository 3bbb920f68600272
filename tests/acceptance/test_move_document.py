"""docs/move.md on real servers: its commands, in the order of the story, from one database to shards, to more of them,
and back once. The application writes between the steps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.reshard_shop import TABLES, Grid, Shop, shop

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "move.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^#{2,3} (.*?)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THERE, BACK, BEFORE, AFTER = "There", "The way back", "Before the cutover: from the stage alone", (
    "After the cutover: shard by shard"
)  # fmt: skip
GROUPS, UNKNOWN, SOME = "Groups of tables", "Whether it was switched is unknown", "Some shards before others"
"""What is done there belongs to other stories: test_cutover.py has them, and test_reshard.py."""
pytestmark = pytest.mark.spark


def commands(section: str) -> list[str]:
    """The commands of a section, in the order of the document."""
    (text,) = (body for name, body in SECTION.findall(TEXT) if name == section)
    lines = [line.split("#")[0].strip() for block in BLOCK.findall(text) for line in block.splitlines()]
    return [line for line in lines if line.startswith("lockstep ")]


def test_every_command_of_the_document_is_in_a_story() -> None:
    with_commands = {name for name, body in SECTION.findall(TEXT) if "lockstep " in "".join(BLOCK.findall(body))}
    assert with_commands == {THERE, BACK, BEFORE, AFTER, GROUPS, UNKNOWN, SOME}


LAYOUTS = pytest.mark.parametrize(
    ("servers", "old", "new"),
    [
        ("mysql9 to mariadb", (2, 2), (4, 4)),
        pytest.param("mysql9 to mariadb", (8, 8), (16, 16), marks=pytest.mark.matrix),
        pytest.param("mariadb to mysql9", (8, 8), (16, 16), marks=pytest.mark.matrix),
    ],
    indirect=["servers"],
)


def follow(made: Shop, section: str, only: Callable[[str], bool] = lambda line: True) -> list[Any]:
    """Runs the commands of a section."""
    answers = []
    for line in filter(only, commands(section)):
        text = line.replace("16x16", f"{made.new[0]}x{made.new[1]}").replace(" --every 10s", "")
        answers.append(made(*shlex.split(text)[1:], LOCKSTEP_PIPELINES=str(made.folder)))
    return answers


@pytest.mark.matrix
@LAYOUTS
@pytest.mark.timeout(1800)
def test_the_story_from_one_database_to_shards_to_more_shards_and_back_once(
    lockstep: Any, servers: tuple[Any, Any], old: Grid, new: Grid
) -> None:
    with shop(lockstep, *servers, old=old, new=new) as made:
        made("run", "shop.yaml")
        made.write()
        *_, there = follow(made, THERE)
        assert there["state"] == "WATCH"
        made.write(made.target, made.old_place)
        run, verified, status, back = follow(made, BACK, lambda line: "complete" not in line)
        assert run["rows"] > 0
        assert verified["equal"] is True
        assert status["way_back"]["ready"] is True
        assert back["state"] == "COMPLETE"
        same(made, "at_source", "in_old")
        made.write()
        follow(made, THERE, lambda line: "cutover run" in line)
        follow(made, BACK, lambda line: "complete" in line)
        made.write(made.target, made.old_place)
        reshard, _, verified = follow(made, AFTER, lambda line: "cutover" not in line and "_back" not in line)
        made.hook(f"shop_{new[0]}x{new[1]}.yaml")
        plan, there = follow(made, AFTER, lambda line: "cutover" in line and " back " not in line)
        assert reshard["layout"] == f"{new[0]}x{new[1]}"
        assert verified["equal"] is True
        assert not [finding for finding in plan["findings"] if finding["status"] == "fail"]
        assert there["state"] == "WATCH"
        same(made, "in_old", "in_new")
        made.write(made.target, made.new_place)
        _, verified, back = follow(made, AFTER, lambda line: "_back" in line or " back " in line)
        assert verified["equal"] is True
        assert back["state"] == "COMPLETE"
        same(made, "in_old", "in_new")


@pytest.mark.matrix
@LAYOUTS
@pytest.mark.timeout(1800)
def test_the_story_of_more_shards_before_the_cutover(
    lockstep: Any, servers: tuple[Any, Any], old: Grid, new: Grid
) -> None:
    with shop(lockstep, *servers, old=old, new=new) as made:
        made("run", "shop.yaml")
        made.write()
        made("run", "shop.yaml")
        made.add_layout()
        filled, verified = follow(made, BEFORE)
        assert [target["target"] for target in filled["targets"]] == [f"shards_{new[0]}x{new[1]}"]
        assert verified["equal"] is True
        same(made, "at_source", "in_old", "in_new")


def same(made: Shop, *places: str) -> None:
    for table in TABLES:
        rows = [getattr(made, place)(table) for place in places]
        assert rows[0]
        assert all(row == rows[0] for row in rows)
