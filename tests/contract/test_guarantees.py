"""docs/guarantees.md: each promise names tests that exist, once, and that nobody has switched off."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.contract.product_source import ROOT, modules, text_of

PROMISE = re.compile(r"^\*\*(.+?)\*\*\n((?:(?!\*\*|#).*\n)*)", re.MULTILINE)
NUMBERED = re.compile(r"^\*\*(?:G(\d+)\. )?(.+?)\*\*$", re.MULTILINE)
CITED = re.compile(r"\bG(\d+)(?:, G\d+)* of docs/guarantees\.md")
OFF = ("mark.skip", "mark.xfail")


def promises() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return {promise: re.findall(r"`(test_\w+)`", tests) for promise, tests in PROMISE.findall(text)}


def test_each_promise_has_a_number_of_its_own_by_which_the_code_cites_it() -> None:
    found = NUMBERED.findall((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    numbers = [int(number) for number, _ in found if number]
    assert numbers == list(range(1, len(found) + 1))
    cited = {
        int(number)
        for path in modules("cdc_core", "spark_jobs", "plugins", "expectations", "lockstep")
        for number in CITED.findall(text_of(path))
    }
    assert cited, "nothing cites a promise: does the pattern still fit?"
    assert cited <= set(numbers)


def functions() -> dict[str, list[str]]:
    """The text of each test up to its name: its marks are in it."""
    found = defaultdict(list)
    for path in modules("tests"):
        for test in re.finditer(r"^def (test_\w+)\(", text_of(path), re.MULTILINE):
            found[test[1]].append(text_of(path)[: test.start()].rpartition("\n\n\n")[2])
    return found


def test_each_promise_names_tests_that_exist_and_are_not_switched_off() -> None:
    existing = functions()
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert len(promises()) == len(re.findall(r"^\*\*", text, re.MULTILINE)) >= 10
    for promise, names in promises().items():
        assert names, promise
        for name in names:
            assert len(existing[name]) == 1, f"{promise} {name} stands {len(existing[name])} times in tests/"
            assert not any(off in existing[name][0] for off in OFF), f"{promise} {name} is switched off"
