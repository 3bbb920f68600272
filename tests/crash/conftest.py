"""Prints the crash matrix behind a run of all of it."""

from __future__ import annotations

import pytest

from tests.crash.cases import AT_ENDPOINT, SUFFIXES, table

_WORDS = {"passed": "equal", "failed": "NOT EQUAL", "error": "NOT EQUAL"}


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("-m") == "matrix or crash_sample":
        outcomes = {
            report.nodeid.partition("[")[2]
            .rstrip("]")
            .removesuffix(SUFFIXES["mysql9"])
            .removesuffix(AT_ENDPOINT): _WORDS[outcome]
            for outcome in _WORDS
            for report in terminalreporter.stats.get(outcome, [])
        }
        for line in table(outcomes):
            terminalreporter.write_line(line)
