"""docs/guarantees.md: each promise names tests that exist, once, and that nobody has switched off."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISE = re.compile(r"^\*\*(.+?)\*\*\n((?:(?!\*\*|#).*\n)*)", re.MULTILINE)
NUMBERED = re.compile(r"^\*\*(?:G(\d+)\. )?(.+?)\*\*$", re.MULTILINE)
CITED = re.compile(r"\bG(\d+)(?:, G\d+)* of docs/guarantees\.md")
OFF = ("skip", "xfail")


def promises() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return {promise: re.findall(r"`(test_\w+)`", tests) for promise, tests in PROMISE.findall(text)}


def test_each_promise_has_a_number_of_its_own_by_which_the_code_cites_it() -> None:
    found = NUMBERED.findall((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    numbers = [int(number) for number, _ in found if number]
    assert numbers == list(range(1, len(found) + 1))
    cited = {
        int(number)
        for folder in ("cdc_core", "spark_jobs", "plugins", "expectations", "lockstep")
        for path in (ROOT / folder).rglob("*.py")
        for number in CITED.findall(path.read_text(encoding="utf-8"))
    }
    assert cited, "nothing cites a promise: does the pattern still fit?"
    assert cited <= set(numbers)


def functions() -> dict[str, list[ast.FunctionDef]]:
    found = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name].append(node)
    return found


def test_each_promise_names_tests_that_exist_and_are_not_switched_off() -> None:
    existing = functions()
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert len(promises()) == len(re.findall(r"^\*\*", text, re.MULTILINE)) >= 10
    for promise, names in promises().items():
        assert names, promise
        for name in names:
            assert len(existing[name]) == 1, f"{promise} {name} stands {len(existing[name])} times in tests/"
            marks = [ast.unparse(mark) for mark in existing[name][0].decorator_list]
            assert not [mark for mark in marks if any(off in mark for off in OFF)], f"{promise} {name} is switched off"
