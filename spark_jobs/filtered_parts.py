"""What became of each file of a table's merged rows, and the counts of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from cdc_core.model.merged_columns import RowClass
from cdc_core.model.run_plan import FilterCounts


@dataclass(frozen=True, slots=True)
class FilteredPart:
    """What became of a file of merged rows. paths: in filtered/ and rejected/. classes: how many rows are of each.
    latest: by source, the latest place in its log of what the target has instead of stale rows."""

    paths: tuple[str, ...]
    classes: Mapping[str, int]
    latest: Mapping[str, int]


def later(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The later place of each source."""
    return {source: max(one.get(source, 0), other.get(source, 0)) for source in {**one, **other}}


def latest_of(parts: Sequence[FilteredPart]) -> dict[str, int]:
    """`latest` of several parts."""
    return reduce(later, (part.latest for part in parts), {})


def counts_of(table: str, folder: str, parts: Sequence[FilteredPart]) -> FilterCounts:
    """The counts of a table, given all its parts. folder: of its files in filtered/."""
    classes = sum((Counter(part.classes) for part in parts), Counter[str]())
    files = sorted(path for part in parts for path in part.paths if path.startswith(f"{folder}/"))
    return FilterCounts(
        table,
        **{name: classes[name] for name in RowClass if name is not RowClass.UNCOUNTED},
        files=tuple(path.removeprefix(f"{folder}/") for path in files),
    )
