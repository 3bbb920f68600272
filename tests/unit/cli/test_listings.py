"""Commands show the lists of their documents as tables: a column for each key, under its name without the unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.cli.output import listing
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line

PIPELINE = """
pipeline: line
sources: [{{name: shop, connection: env:SHOP, server_id: 7}}]
tables: {{include: ['.*']}}
stage: {{uri: 'file://{0}/stage'}}
meta: {{url: 'sqlite:///{0}/meta.db'}}
targets: [{{name: t, connections: [env:T], tables: {{'*': {{}}}}}}]
"""


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A pipeline that has applied one of its two batches. The files of both are lost."""
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 7}))
    line.done("run")
    line.stage(manifest(1, tables={"shop.orders": 5}))
    line.meta.close()
    path = tmp_path / "line.yaml"
    path.write_text(PIPELINE.format(tmp_path))
    return path


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (["stage", "ls"], 0, "table ┃ rows ┃ files ┃ size"),
        (["stage", "verify"], 4, "source ┃ what ┃ path ┃ code ┃ healed"),
        (
            ["stage", "purge", "--older-than", "1d", "--dry-run"],
            0,
            "source ┃ batches ┃ rows ┃ size ┃ horizon",
        ),
        (["stage", "compact", "--dry-run", "--remove-originals"], 0, "source ┃ label ┃ batches ┃ rows ┃ files before"),
        (["stage", "sweep", "--dry-run"], 0, "source ┃ files ┃ size ┃ unfinished"),
        (["stage", "isolated"], 0, "No table is isolated."),
        (["snapshot", "--pause"], 0, "Copies of shop are paused"),
        (["meta", "rebuild"], 0, "source ┃ restored ┃ position"),
        (["cutover", "status"], 0, "No cutover has begun."),
        (["status"], 75, "source ┃ position ┃ complete to ┃ lag ┃ batches ┃ rows ┃ size ┃ holder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_answers_with_a_document_and_shows_its_lists(
    lockstep: Callable[..., Any], staged: Path, words: list[str], code: int, shown: str
) -> None:
    groups = 2 if words[0] in ("stage", "meta", "cutover") else 1
    command = [*words[:groups], staged, *words[groups:]]
    done = lockstep(*command)
    assert (done.code, shown in " ".join(done.out.replace("┃", " ┃ ").split())) == (code, True), done.out + done.err
    again = lockstep(*command, "--json")
    assert again.code == code
    document = json.loads(again.out)
    assert document.get("pipeline", "line") == "line"


def test_units_are_in_the_cells_and_not_in_the_headings() -> None:
    made = listing(
        "t",
        [{"size_bytes": 2048, "lag_s": 3.2, "position": {"timeline": 0, "file": "b.000001", "offset": 4}, "ok": True}],
        "size_bytes lag_s position ok gone",
        omit_empty="gone",
    )
    assert made.columns == ("size", "lag", "position", "ok")
    assert [[cell.plain for cell in row] for row in made.rows] == [["2.0 KiB", "3 s", "b.000001:4", "yes"]]
