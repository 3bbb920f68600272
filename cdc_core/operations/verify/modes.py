"""What a verification compares, and what its results mean for who asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from cdc_core.model.readable import counted

DOUBT = "doubt"
"""Beside the modes, where their evidence is kept: why what they have found before does not count."""


class Mode(StrEnum):
    """What is compared. Only ORDERED proves that a target is equal."""

    ORDERED = "ordered"
    """Every row."""
    RANDOM = "random"
    """Every row of some ranges of keys, chosen at random."""
    COUNT = "count"
    """The number of rows."""
    MAX_ID = "max-id"
    """The number of rows, and the greatest key."""


def found_since(evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """Differences that are known in spite of the latest verification of every row, for people; "" for none.

    evidence: the latest summary of each mode, as meta has it.
    """
    full, doubted = evidence.get(Mode.ORDERED), evidence.get(DOUBT)
    if full is not None and doubted is not None and str(doubted["ended"]) >= str(full["started"]):
        return str(doubted["why"])
    newest = max(evidence.values(), key=lambda one: str(one["ended"]), default=None)
    differing: Mapping[str, int] = newest.get("differing", {}) if newest is not None else {}
    if differing:
        return f"{counted(sum(differing.values()), 'row')} of {', '.join(sorted(differing))} were found to differ"
    for mode, one in evidence.items():
        if full is not None and str(one["ended"]) > str(full["ended"]) and one["differences"]:
            rows = counted(one["differences"], "row")
            return f"a later verification (--mode {mode}, {one['ended']}) has found {rows} more or less"
    return ""
