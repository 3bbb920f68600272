"""Which evidence of a verification counts for a cutover: one rule for its plan, its steps and what is said of a way
back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc_core.meta.verifications import known_to_differ
from cdc_core.model.readable import counted
from cdc_core.model.windows import age_us, parse_moment, to_us
from cdc_core.operations.verify.modes import DOUBT, Mode

Summaries = Mapping[str, Mapping[str, Any]]
"""What meta has of the latest verification of a target in each mode."""


def ended_us(summary: Mapping[str, Any]) -> int:
    return to_us(parse_moment(str(summary["ended"])))


def lacking(evidence: Summaries, oldest: str, now_us: int, *, since_us: int, definition: str = "") -> str:
    """Why the latest verification of every row does not count for a cutover, for people; "" if it counts.

    oldest: `cutover.evidence`. since_us: when the application came to the tables that the pipeline reads; it wrote
    elsewhere before. definition: digest of the pipeline; "" where its file is not at hand.
    """
    full = evidence.get(Mode.ORDERED)
    if full is None:
        return "never verified"
    if full["equal"] is not True:
        return "not equal"
    if not full["all_tables"]:
        return "not every table was verified"
    if ended_us(full) < since_us:
        return "not verified since the switch"
    if now_us - ended_us(full) > age_us(oldest):
        return f"too old (cutover.evidence: {oldest})"
    if definition not in ("", full["config_sha256"]):
        return "the pipeline file was another"
    return found_since(evidence)


def found_since(evidence: Summaries) -> str:
    """Differences that are known in spite of the latest verification of every row, for people; "" for none."""
    full, doubted = evidence.get(Mode.ORDERED), evidence.get(DOUBT)
    if full is not None and doubted is not None and str(doubted["ended"]) >= str(full["started"]):
        return str(doubted["why"])
    differing = known_to_differ(evidence)
    if differing:
        return f"{counted(sum(differing.values()), 'row')} of {', '.join(sorted(differing))} were found to differ"
    for mode, summary in evidence.items():
        if full is not None and str(summary["ended"]) > str(full["ended"]) and summary["differences"]:
            rows = counted(summary["differences"], "row")
            return f"a later verification (--mode {mode}, {summary['ended']}) has found {rows} more or less"
    return ""
