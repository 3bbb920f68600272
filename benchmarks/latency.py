"""An application's writes around the moment at which it was led elsewhere, as SVG: how long each took, and how many.

Time 0 is when the write began that took the longest. Above: for each piece of time, from the fastest to the slowest of
the writes that began in it, and their median. Below: how many were confirmed in it, up to twice the median: writers
make up for what they could not write, within a moment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from examples.move.application import Write

_BEFORE_S, _AFTER_S, _PIECE_S = 12.0, 4.0, 0.1
_WIDTH, _LEFT, _RIGHT = 860, 70, 12
_TITLE, _UPPER, _LOWER, _GAP, _AXIS = 24, 130, 44, 10, 34
_PANEL = _TITLE + _UPPER + _GAP + _LOWER + _AXIS
_LOW_MS, _HIGH_MS = 0.1, 10_000.0
_LINES = {0.1: "0.1 ms", 1.0: "1 ms", 10.0: "10 ms", 100.0: "0.1 s", 1_000.0: "1 s", 10_000.0: "10 s"}
_RANGE, _MEDIAN, _COUNT, _RULE = "#9ec5fe", "#1f6feb", "#b6bfc9", "#e4e8ec"


def latency_picture(panels: Mapping[str, Sequence[Write]]) -> str:
    """panels: writes by title."""
    height = _PANEL * len(panels)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11" fill="#1f2328">'
    )
    drawn = [line for number, item in enumerate(panels.items()) for line in _panel(number * _PANEL, *item)]
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>', *drawn, "</svg>", ""])


def _panel(top: int, title: str, writes: Sequence[Write]) -> Iterator[str]:
    longest = max(writes, key=lambda write: write.took_s)
    upper, lower = top + _TITLE, top + _TITLE + _UPPER + _GAP
    yield f'<text x="8" y="{top + 15}" font-weight="bold" font-size="12">{escape(title)}</text>'
    yield (f'<text x="{_WIDTH - _RIGHT}" y="{top + 15}" text-anchor="end">longest write {longest.took_s:.2f} s</text>')
    for ms, name in _LINES.items():
        y = upper + _height(ms / 1e3)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_RULE}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
    yield from _latencies(upper, _pieces((write.began_s - longest.began_s, write.took_s) for write in writes))
    yield from _counts(lower, _pieces((write.began_s + write.took_s - longest.began_s, 1.0) for write in writes))
    for second in range(-int(_BEFORE_S), int(_AFTER_S) + 1, 2):
        x = _place(second)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{lower + _LOWER}" y2="{lower + _LOWER + 4}" stroke="#1f2328"/>'
        yield f'<text x="{x:.1f}" y="{lower + _LOWER + 16}" text-anchor="middle">{second} s</text>'


def _pieces(found: Iterable[tuple[float, float]]) -> dict[int, list[float]]:
    """Values by piece of time, of pairs of second and value."""
    pieces: dict[int, list[float]] = {}
    for at_s, value in found:
        if -_BEFORE_S <= at_s < _AFTER_S:
            pieces.setdefault(math.floor(at_s / _PIECE_S), []).append(value)
    return dict(sorted(pieces.items()))


def _latencies(top: int, pieces: Mapping[int, Sequence[float]]) -> Iterator[str]:
    width = _place(_PIECE_S) - _place(0)
    for piece, took_s in pieces.items():
        slowest, fastest = _height(max(took_s)), _height(min(took_s))
        yield (
            f'<rect x="{_place(piece * _PIECE_S):.1f}" y="{top + slowest:.1f}" width="{width:.1f}" '
            f'height="{max(fastest - slowest, 1):.1f}" fill="{_RANGE}"/>'
        )
    line: list[str] = []
    for piece, took_s in pieces.items():
        move = "L" if line and piece - 1 in pieces else "M"  # a piece without writes has no median
        line.append(f"{move}{_place((piece + 0.5) * _PIECE_S):.1f} {top + _height(statistics.median(took_s)):.1f}")
    yield f'<path d="{" ".join(line)}" fill="none" stroke="{_MEDIAN}" stroke-width="1.5"/>'


def _counts(top: int, pieces: Mapping[int, Sequence[float]]) -> Iterator[str]:
    most = 2 * statistics.median(map(len, pieces.values()))
    width = _place(_PIECE_S) - _place(0)
    yield f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most / _PIECE_S:,.0f}/s</text>'
    yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top + _LOWER}" y2="{top + _LOWER}" stroke="#1f2328"/>'
    for piece, confirmed in pieces.items():
        height = min(_LOWER * len(confirmed) / most, _LOWER)
        yield (
            f'<rect x="{_place(piece * _PIECE_S):.1f}" y="{top + _LOWER - height:.1f}" width="{width - 0.5:.1f}" '
            f'height="{height:.1f}" fill="{_COUNT}"/>'
        )


def _place(at_s: float) -> float:
    return _LEFT + (at_s + _BEFORE_S) / (_BEFORE_S + _AFTER_S) * (_WIDTH - _LEFT - _RIGHT)


def _height(took_s: float) -> float:
    """From the top; the scale is logarithmic."""
    ms = min(max(took_s * 1e3, _LOW_MS), _HIGH_MS)
    return _UPPER * (1 - math.log10(ms / _LOW_MS) / math.log10(_HIGH_MS / _LOW_MS))
