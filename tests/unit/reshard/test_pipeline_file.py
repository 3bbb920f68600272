"""A pipeline file gets one more target, and keeps everything else, letter by letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_core.config import load
from cdc_core.errors import LockstepError
from cdc_core.operations.reshard.pipeline_file import add_target, let_in

HEAD = """# mine
pipeline: shop
sources: [{name: one, connection: "env:SRC", server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: "file:///nowhere"}   # s
meta: {url: "sqlite:////nowhere/meta.db"}
"""
RULE = {"database": "d{d}", "table": "t{t}", "sharding": {"key": "id", "databases": 2, "tables": 2}}
NEW: dict[str, Any] = {"name": "wide", "connections": ["env:T"], "replay_only": True, "tables": {"*": RULE}}
TARGETS = {
    "at the end": """targets:
  - name: narrow   # n
    connections: [env:T]
    tables:
      '*': {database: shop}""",
    "with more behind it": """targets:
- name: narrow
  connections:
  - env:T
  tables:
    '*': {database: shop}  # all

# what follows

airflow: {retries: 3}
""",
    "two of them, in braces": """targets:
    - {name: narrow, connections: [env:T], tables: {'*': {database: shop}}}
    - {name: other, connections: [env:U], tables: {'*': {database: shop}}}
    # the last line
""",
}


@pytest.mark.parametrize("text", TARGETS.values(), ids=TARGETS)
def test_a_target_is_added_and_let_in(text: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(HEAD + text)
    path.chmod(0o640)
    former = load(path)
    add_target(path, NEW)
    added = load(path)
    assert [one.name for one in added.targets] == [*(one.name for one in former.targets), "wide"]
    assert added.targets[-1].replay_only
    assert {line for line in (HEAD + text).splitlines() if line} <= set(path.read_text().splitlines())
    let_in(path, "wide")
    let_in(path, "wide")
    fed = load(path)
    assert (fed.targets[:-1], fed.targets[-1].replay_only) == (former.targets, False)
    assert "replay_only" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["shop.yaml"]


@pytest.mark.parametrize("text", ["targets: []\n", "targets: [{name: n, connections: ['env:T'], tables: {'*': {}}}]\n"])
def test_a_form_that_is_not_understood_is_left_to_a_person(text: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(LockstepError) as caught:
        add_target(path, NEW)
    assert caught.value.code == "reshard.file"
    assert "- name: wide" in caught.value.remedy
    assert path.read_text() == HEAD + text


def test_a_target_in_braces_is_let_in_by_a_person(tmp_path: Path) -> None:
    text = HEAD + "targets:\n  - {name: wide, replay_only: true, connections: ['env:T'], tables: {'*': {}}}\n"
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    with pytest.raises(LockstepError) as caught:
        let_in(path, "wide")
    assert caught.value.code == "reshard.file"
    assert path.read_text() == text


def test_a_target_that_the_file_does_not_name_any_more_is_not_said_to_be_let_in(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    former = HEAD + TARGETS["at the end"]
    path.write_text(former)
    add_target(path, NEW)
    path.write_text(former)  # as it is in a repository, deployed while the target is filled
    with pytest.raises(LockstepError) as caught:
        let_in(path, "wide")
    assert caught.value.code == "reshard.file"
    assert path.read_text() == former
