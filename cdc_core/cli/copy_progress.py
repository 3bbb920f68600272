"""How far a copy is, in a line for people: on the terminal, and in the log of an Airflow task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_core.cli.output import duration, size
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.snapshot.progress import Figures


def progress_text(figures: Figures) -> str:
    """Rows and bytes, read and of all; the rate, and the time that is left. An estimate has a ~."""
    fraction = figures.fraction
    of = "" if figures.total is None else f" of ~{figures.total:,}"
    if figures.complete:
        return f"all {counted(figures.rows, 'row')} read, {size(figures.size_bytes)}"
    parts = [f"{figures.rows:,}{of} rows", size(figures.size_bytes)]
    if figures.total_bytes is not None and not figures.complete:
        parts[1] += f" of ~{size(figures.total_bytes)}"
    if fraction is not None:
        parts[0] += f" ({fraction:.0%})"
    if figures.waiting:
        return f"{', '.join(parts)}; waits: {figures.waiting}"
    if figures.rows_s and figures.bytes_s:
        parts.append(f"{figures.rows_s:,.0f} rows/s, {size(int(figures.bytes_s))}/s")
    if figures.left_s:
        parts.append(f"about {duration(figures.left_s)} left")
    return ", ".join(parts)
