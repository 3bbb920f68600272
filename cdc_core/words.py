"""Counts and lists in messages: `1 row`, `2 rows`; `a, b and 3 more`."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 batch`, `2,000 batches`. plural: where an s (after s, x, ch and sh: es) does not make it."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {plural or noun + ending}"


def some_of(names: Sequence[str], most: int, noun: str = "") -> str:
    """The first `most` of them, and how many others there are: `a, b and 3 more`, `a, b and 3 more tables`."""
    left = len(names) - most
    more = f" and {left:,} more {noun}".rstrip() if left > 0 else ""
    return ", ".join(names[:most]) + more
