"""Counts in messages: `1 row`, `2 rows`."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 batch`, `2,000 batches`. plural: where an s (after s, x, ch and sh: es) does not make it."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {plural or noun + ending}"
