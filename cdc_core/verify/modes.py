"""What a verification compares, and what its results mean for who asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from cdc_core.errors import DataAtRisk, LockstepError, Refused, TableUnready, worst
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.verify.results import TableResult


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


def outcome(results: Sequence[TableResult], target: str) -> LockstepError | None:
    """The error of the results together; None where all tables are equal."""
    errors = [one.error for one in results if one.error is not None]
    different = [one for one in results if one.differences]
    if different:
        rows = sum(one.differences for one in different)
        errors.append(
            DataAtRisk(
                f"{counted(rows, 'row')} of {', '.join(one.table for one in different)} "
                f"{'differs' if rows == 1 else 'differ'}.",
                where=f"target {target}",
                code="verify.differs",
                remedy="see which side is wrong; `lockstep repair` fixes single rows (docs/verification.md)",
            )
        )
    unreplayed = [one for one in results if one.unreplayed]
    if unreplayed:
        errors.append(
            Refused(
                f"{counted(sum(one.unsettled for one in unreplayed), 'row')} of "
                f"{', '.join(one.table for one in unreplayed)} could not be judged: only replays feed the target, "
                "and none from the first batch on is known.",
                where=f"target {target}",
                code="verify.not_replayed",
                remedy="replay everything to it (`lockstep run PIPELINE --replay --target TARGET`), then verify again",
            )
        )
    unsettled = [one for one in results if one.unsettled and not one.unreplayed]
    if unsettled:
        errors.append(
            TableUnready(
                f"{counted(sum(one.unsettled for one in unsettled), 'row')} of "
                f"{', '.join(one.table for one in unsettled)} changed too often to be judged.",
                where=f"target {target}",
                code="verify.unsettled",
                remedy="verify again after the next run",
            )
        )
    return worst(errors) if errors else None


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
