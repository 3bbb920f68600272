"""What a user sees of a stage that lost a piece, was edited by hand, or has what killed extractions left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def staged(source_database: Any, lockstep: Any) -> Any:
    """A pipeline `shop.yaml` with three batches of a row each."""
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    for number in range(3):
        source_database.execute(f"INSERT INTO orders VALUES ({number})")
        lockstep("extract", "shop.yaml")
    return source_database


def stage_of(lockstep: Any) -> Path:
    return Path(lockstep("stage", "ls", "shop.yaml").document["stage"].removeprefix("file://"))


@contextmanager
def without(path: Path) -> Iterator[None]:
    data = path.read_bytes()
    path.unlink()
    yield
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_each_lost_piece_stops_each_reader_and_nothing_is_left_out_silently(staged: Any, lockstep: Any) -> None:
    stage = stage_of(lockstep)
    query = f"SELECT count(*) FROM {staged.name}.orders"
    readers = (
        ("stage", "verify", "shop.yaml"),
        ("stage", "export", "shop.yaml", f"{staged.name}.orders", "-o", "out.parquet", "--force"),
        ("stage", "sql", "shop.yaml", query),
    )
    manifests = sorted((stage / "manifests/shop").iterdir())
    (start,) = (stage / "starts").iterdir()
    for piece in (manifests[0], manifests[-1], start, next((stage / "changes").rglob("*.parquet"))):
        with without(piece):
            for reader in readers:
                done = lockstep(*reader, code=4)
                codes = (
                    [problem["code"] for problem in done.document["problems"]]
                    if "verify" in reader
                    else [done.error["code"]]
                )
                assert codes[0] in ("stage.chain", "stage.damaged"), (piece, reader)
            if piece in (manifests[-1], start):
                for command in ("extract", "ls"):
                    arguments = ("extract", "shop.yaml") if command == "extract" else ("stage", "ls", "shop.yaml")
                    assert lockstep(*arguments, code=4).error["code"] in ("stage.chain", "stage.damaged"), piece
                checked = lockstep("check", "shop.yaml", code=4).document["findings"]
                assert {finding["code"] for finding in checked if finding["status"] == "fail"} <= {
                    "stage.chain",
                    "stage.damaged",
                }
    assert lockstep("stage", "sql", "shop.yaml", query).document == {
        "columns": ["count_star()"], "rows": [[3]], "compared_with_meta": True,
    }  # fmt: skip

    # Of copied rows the chain has no gap, and the table was whole before: it would seem whole without the manifest.
    lockstep("snapshot", "shop.yaml", f"{staged.name}.orders")
    (copied,) = [file for file in (stage / "manifests/shop").iterdir() if json.loads(file.read_text())["chunks"]]
    with without(copied):
        for reader in (*readers[1:], ("stage", "ls", "shop.yaml", "--files")):
            error = lockstep(*reader, code=4).error
            assert (error["code"], copied.name in error["what"]) == ("stage.damaged", True), reader

    meta = next((lockstep.directory / ".lockstep").rglob("meta.db"))
    meta.rename(meta.with_name("away"))
    for reader in readers:
        done = lockstep(*reader)
        assert done.document["compared_with_meta"] is False
        assert "not compared with the meta database" in done.err
    assert not meta.exists()


def test_an_extractor_that_finds_a_start_and_no_meta_begins_there_again(source_database: Any, lockstep: Any) -> None:
    """Killed between the two, or its meta was lost before anything was staged: `latest` means the same moment."""
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    for file in (lockstep.directory / ".lockstep").rglob("meta.db*"):
        file.unlink()
    stage = Path(lockstep("stage", "ls", "shop.yaml").document["stage"].removeprefix("file://"))
    for manifest in (stage / "manifests").rglob("*.json"):
        manifest.unlink()
    source_database.execute("INSERT INTO orders VALUES (7)")
    lockstep("extract", "shop.yaml")
    answer = lockstep("stage", "sql", "shop.yaml", f"SELECT id FROM {source_database.name}.orders").document
    assert answer["rows"] == [[7]]
    assert lockstep("stage", "verify", "shop.yaml", "--deep").document["ok"] is True


def test_a_purge_deletes_nothing_that_the_batch_cannot_have_written(staged: Any, lockstep: Any) -> None:
    def content() -> dict[Path, bytes]:
        found = (file for file in stage.parent.rglob("*") if file.is_file() and "meta.db" not in file.name)
        return {file: file.read_bytes() for file in found}

    stage = stage_of(lockstep)
    (stage / "manifests/other").mkdir()
    (stage / "manifests/other/0000-0000001-0000000004.json").write_text("another's")
    (stage.parent / "outside.txt").write_text("mine")
    first, *_, newest = (
        file for file in sorted((stage / "manifests/shop").iterdir()) if json.loads(file.read_text())["parts"]
    )
    of_another_batch = json.loads(newest.read_text())["parts"][0]["path"]
    for victim in ("manifests/other/0000-0000001-0000000004.json", "../outside.txt", "/tmp/x", of_another_batch):
        data = json.loads(first.read_text())
        data["parts"][0]["path"] = victim
        first.write_text(json.dumps(data))
        before = content()
        refused = lockstep("stage", "purge", "shop.yaml", "--older-than", "1m", code=4).error
        assert (refused["code"], victim in refused["what"]) == ("stage.damaged", True)
        assert content() == before
