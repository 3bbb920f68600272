"""Patterns and names of the pipeline file that match nothing at the sources. A misspelled mask or filter would leave
all values as they are, and a misspelled table of a target would stay empty, and nobody would be told.

What resembles something that no other rule of its kind matches is taken for a misspelling; anything else may be for
tables that appear later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc_core.config import Pipeline
from cdc_core.errors import Refused
from cdc_core.operations.check.findings import Findings
from cdc_core.source.host.near_names import ALIKE, question, resembling

_MOST_NAMED = 5
_COLUMN = "column of a captured table"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a source has. tables: all that the account may see, as `database.table`; captured: those that the pipeline
    captures. columns: of these, as `database.table.column`, before and after functions of the user's. unread: captured
    tables whose columns the account may not see, and the logical tables to which they lead."""

    tables: frozenset[str]
    captured: frozenset[str]
    columns: frozenset[str]
    lower_case: bool
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Patterns:
    """One kind of rule. names: what its patterns may match. flags: how they are compared. unread: tables that may have
    further names."""

    place: str
    what: str
    patterns: Sequence[str]
    names: Collection[str]
    flags: re.RegexFlag
    unread: Sequence[str] = ()


def check_rules(pipeline: Pipeline, seen: Sequence[Seen], logical: Iterable[str], findings: Findings) -> None:
    """seen: of each source. logical: the logical tables that captured tables lead to."""
    tables = {name for source in seen for name in source.tables}
    captured = {name for source in seen for name in source.captured}
    columns = {name for source in seen for name in source.columns}
    unread = sorted({name for source in seen for name in source.unread})
    if not captured:
        return  # that is said of tables.include
    flags = re.IGNORECASE if any(source.lower_case for source in seen) else re.NOFLAG
    rules = pipeline.tables
    for patterns in (
        _Patterns("tables.exclude", "table", rules.exclude, tables, flags),
        _Patterns("tables.processors", "captured table", [rule.match for rule in rules.processors], captured, flags),
        _Patterns("tables.rows", "captured table", [rule.match for rule in rules.rows], captured, flags),
        _Patterns("tables.columns.exclude", _COLUMN, rules.columns.exclude, columns, re.IGNORECASE, unread),
        _Patterns("tables.columns.mask", _COLUMN, rules.columns.mask, columns, re.IGNORECASE, unread),
        _Patterns("routes", "captured table", [route.match for route in pipeline.routes], captured, flags),
    ):
        _check(patterns, findings)
    names = sorted({*logical, *(name for source in seen for led in source.unread.values() for name in led)})
    for target in pipeline.targets:
        _names(f"targets.{target.name}.tables", target.tables, names, findings)
    suites = dict.fromkeys(suite.table for suite in pipeline.quality.suites)
    _names("quality.suites", suites, names, findings)


def _check(rule: _Patterns, findings: Findings) -> None:
    free = {
        name for name in rule.names if not any(re.fullmatch(pattern, name, rule.flags) for pattern in rule.patterns)
    }
    for pattern in rule.patterns:
        if any(re.fullmatch(pattern, name, rule.flags) for name in rule.names):
            continue
        what = f"no {rule.what} matches '{pattern}' of {rule.place}"
        if rule.unread:
            some = ", ".join(rule.unread[:_MOST_NAMED])
            what = f"{what}, of those that the account may see, which are not the columns of {some}"
            findings.warn(rule.place, what, "let the account see these tables (GRANT SELECT), and check again")
            continue
        if asked := question(resembling(pattern, sorted(free))[:1]):
            error = Refused(f"{what}. {asked}", where=rule.place, code="config.no_match", remedy="correct the pattern")
            findings.fail(rule.place, error)
        else:
            findings.warn(rule.place, what, "what appears later and matches will follow the rule; else correct it")


def _names(place: str, given: Mapping[str, object] | Iterable[str], logical: Sequence[str], findings: Findings) -> None:
    given = list(given)
    free = [name for name in logical if name not in given]
    for name in given:
        if name == "*" or name in logical:
            continue
        what = f"no captured table leads to {name!r} of {place}"
        near = [table for table in free if table.partition(".")[2] == name or table.lower() == name.lower()]
        near = near or difflib.get_close_matches(name, free, 1, ALIKE)
        if near:
            error = Refused(
                f"{what}. Did you mean {near[0]}?", where=place, code="config.no_match", remedy="correct the name"
            )
            findings.fail(place, error)
        else:
            findings.warn(place, what, "a table that appears later and leads to it will be taken; else correct it")
