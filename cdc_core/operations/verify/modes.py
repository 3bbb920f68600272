"""What a verification compares."""

from __future__ import annotations

from enum import StrEnum

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
