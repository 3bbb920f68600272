"""The figures as a picture: bars of changes or rows per second, a group for each workload, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

_WIDTH, _NAMES, _VALUES = 860, 220, 100
_BAR, _GAP, _TITLE = 16, 14, 22
_OURS, _OTHERS = "#1f6feb", "#b6bfc9"


def picture(figures: Mapping[str, Mapping[str, float]]) -> str:
    """figures: workload -> reader -> changes per second, our reader first. Each group has a scale of its own: changes
    of one workload are not those of another."""
    height = sum(_TITLE + _BAR * len(readers) + _GAP for readers in figures.values()) + _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#1f2328">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>', *_groups(figures), "</svg>", ""])


def _groups(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    y = _GAP
    for workload, readers in figures.items():
        yield f'<text x="8" y="{y + 12}" font-weight="bold">{escape(workload)}</text>'
        y += _TITLE
        scale = (_WIDTH - _NAMES - _VALUES) / max(readers.values())
        for number, (reader, speed) in enumerate(readers.items()):
            width = max(speed * scale, 1)
            yield f'<text x="{_NAMES - 8}" y="{y + 11}" text-anchor="end">{escape(reader)}</text>'
            yield (
                f'<rect x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" '
                f'fill="{_OTHERS if number else _OURS}"/>'
            )
            yield f'<text x="{_NAMES + width + 6:.1f}" y="{y + 11}">{speed:,.0f}/s</text>'
            y += _BAR
        y += _GAP
