"""A compacted range: what the record on the stage says of a closed range of batches whose rows are in few files.

The record is the commit point: its name is the place where the range begins, and it is written only if absent. It has
all that readers need of the range, so that they read neither its manifests nor the parts that these list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from cdc_core.model.batch import MANIFEST_VERSION, Manifest, Part
from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The counts of a batch as it was staged."""

    rows: Natural
    files: Natural
    size_bytes: Natural

    @classmethod
    def of(cls, manifest: Manifest) -> BatchCounts:
        return cls(manifest.rows, len(manifest.parts), manifest.size_bytes)


@dataclass(frozen=True)
class Compaction:
    """A range of batches of one source's log, in the order of the chain; copied rows are not in it.

    batches: the manifests of the range, without parts and definitions. Copied rows that are staged at a place within
             the range have manifests of their own.
    counts:  of each of them.
    parts:   its rows: of each source table in stream order, without an overlap. Those that are not below `compacted/`
             are parts of the batches that were left as they are.
    schemas: the definitions of the parts, by id.
    """

    epoch: Natural
    created_us: TimeUs
    batches: tuple[Manifest, ...]
    counts: tuple[BatchCounts, ...]
    parts: tuple[Part, ...]
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.batches[0].source

    @property
    def begin(self) -> Position:
        return self.batches[0].begin.position

    @property
    def end(self) -> Position:
        return self.batches[-1].end.position

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def __str__(self) -> str:
        return f"{self.begin} to {self.end}"

    @cached_property
    def known(self) -> Mapping[str, Manifest]:
        """The range as manifests, by their paths: each part is in that of the batch in which its rows begin, and may
        have rows of later batches of the range."""
        begins = [batch.begin.position.seq for batch in self.batches]
        mine: dict[int, list[Part]] = defaultdict(list)
        for part in self.parts:
            mine[bisect_right(begins, part.min_seq) - 1].append(part)
        found = {}
        for number, batch in enumerate(self.batches):
            parts = tuple(mine.get(number, ()))
            schemas = {part.schema_id: self.schemas[part.schema_id] for part in parts}
            found[batch.path] = replace(batch, parts=parts, schemas=schemas)
        return found

    @cached_property
    def _by_table(self) -> Mapping[tuple[str, str], tuple[list[int], list[Part]]]:
        """The parts in stream order, and where each ends, by logical table and definition."""
        found: dict[tuple[str, str], list[Part]] = defaultdict(list)
        for part in self.parts:
            found[part.table, part.schema_id].append(part)
        ordered = {key: sorted(parts, key=lambda part: part.max_seq) for key, parts in found.items()}
        return {key: ([part.max_seq for part in parts], parts) for key, parts in ordered.items()}

    def part_with(self, table: str, schema_id: str, max_seq: int) -> Part | None:
        """The part that has the rows of a table under a definition up to and with an order key of the range."""
        ends, parts = self._by_table.get((table, schema_id), ([], []))
        at = bisect_left(ends, max_seq)
        return parts[at] if at < len(parts) and parts[at].min_seq <= max_seq else None

    def replaces(self, part: Part) -> bool:
        """Whether the rows of a part of its batches are in another file."""
        other = self.part_with(part.table, part.schema_id, part.max_seq)
        return other is not None and other.path != part.path

    def to_bytes(self) -> bytes:
        return dumped(self, version=MANIFEST_VERSION)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Compaction:
        """Raises what `documents.parsed` does."""
        compaction = parsed(cls, raw, version=MANIFEST_VERSION)
        compaction._require_range()
        return compaction

    def _require_range(self) -> None:
        if not self.batches:
            raise ValueError("it has no batch")
        for batch in self.batches:
            if batch.copied or batch.parts or batch.source != self.source:
                raise ValueError(f"{batch.batch_id} is not a batch of its range")
        for before, after in pairwise(self.batches):
            if before.end.position != after.begin.position:
                raise ValueError(f"{before.batch_id} does not end where {after.batch_id} begins")
        if len(self.counts) != len(self.batches):
            raise ValueError("not every batch has its counts")
        for part in self.parts:
            if self.schemas[part.schema_id].id != part.schema_id:
                raise ValueError(f"the definition {part.schema_id} of {part.table} does not match its id")
            if not self.begin.seq <= part.min_seq <= part.max_seq < self.end.seq:
                raise ValueError(f"{part.path} has rows outside its range")
        for _, parts in self._by_table.values():
            if any(after.min_seq <= before.max_seq for before, after in pairwise(parts)):
                raise ValueError(f"two files of {parts[0].table} overlap")


def bare(manifest: Manifest) -> Manifest:
    """A manifest as the record of a range has it."""
    return replace(manifest, parts=(), schemas={})
