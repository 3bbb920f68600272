"""Values as people read them: `2,000 rows`, `a, b and 3 more`, `1.5 MiB`, `3 min`."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.model.windows import from_us


def counted(number: int, noun: str) -> str:
    """`1 batch`, `2,000 batches`: the plural has an s, after s, x, ch and sh es."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}{ending}"


def some_of(names: Sequence[str], most: int, noun: str = "") -> str:
    """The first `most` of them, and how many others there are: `a, b and 3 more`, `a, b and 3 more tables`."""
    left = len(names) - most
    more = f" and {left:,} more {noun}".rstrip() if left > 0 else ""
    return ", ".join(names[:most]) + more


def size(count: int) -> str:
    """Bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time span for people."""
    if seconds <= -0.5:
        return f"-{duration(-seconds)}"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def moment(moment_us: int) -> str:
    """A time in UTC; "" for none."""
    return from_us(moment_us).strftime("%Y-%m-%dT%H:%M:%SZ") if moment_us else ""


def shown(value: object) -> str:
    """A cell's text, with thousands separators; an empty one is a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
