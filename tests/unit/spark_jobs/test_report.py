"""The report of a run's quality, for people."""

from __future__ import annotations

from html.parser import HTMLParser

from spark_jobs.report import page, summary

EVIL = "<script>alert(1)</script>"
VERDICT = {
    "success": False,
    "rows": 12,
    "table": EVIL,
    "stage": "merged",
    "file": EVIL,
    "expectations": [
        {"expectation": EVIL, "arguments": {EVIL: EVIL}, "severity": "critical", "success": False,
         "result": {"partial_unexpected_list": [EVIL], "missing_count": None}},
        {"expectation": "fine", "arguments": {}, "severity": "warning", "success": True, "result": {}},
    ],
    "examples": [{"_key": EVIL}],
}  # fmt: skip


def test_the_page_escapes_what_comes_from_data_and_names_what_failed() -> None:
    tags: list[str] = []
    text: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.handle_data = text.append
    parser.feed(page(EVIL, EVIL, {"own-0": VERDICT}))
    assert "script" not in tags
    assert "".join(text).count(EVIL) >= 6
    assert "not met: own-0" in "".join(text)


def test_the_log_shows_each_failure_with_what_was_found() -> None:
    first, second = summary("merged", {**VERDICT, "file": "orders.yaml", "table": "shop.orders"}).splitlines()
    assert first == "merged, orders.yaml on merged shop.orders: 12 rows, 1 of 2 expectations met"
    assert second.startswith("  critical: ")
    assert "partial_unexpected_list" in second
    assert "missing_count" not in second
