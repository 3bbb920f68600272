"""The compacted ranges of a stage: their records, and what they mean for readers.

    compactions/<source>/<begin position>.json      the record (model.compacted), put if absent: the commit point
    compactions/<source>/<begin position>.removed   the parts that its files replace are removed
    compacted/cdc_table=<table>/cdc_date=<date>/…   the files

From the moment when the record is there, new readers and plans use its files. A reader that began earlier reads the
original parts, which stay for a day or more (`apply.compact`). The manifests stay as long as their batches: the
chain is what it was. May assume that a range has all batches of the log from its begin to its end, and that its files
have exactly the rows of their parts: that is proven before the record is put.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cdc_core.errors import FilesLost
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.compacted import BatchCounts, Compaction
from cdc_core.stage.layout import (
    compaction_path,
    compactions_prefix,
    originals_removed_path,
    parse_compacted,
    parse_part,
)
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stage_records import reading_record

log = logging.getLogger(__name__)

_RESTORE = (
    "restore the file from a backup of the stage. If no `.removed` is beside it, all parts are still there: then "
    "delete the record, and compact again"
)


@dataclass(frozen=True, slots=True)
class Compactions:
    """Compacted ranges by source: in the order of the chain, without an overlap."""

    by_source: Mapping[str, Sequence[Compaction]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Compaction]:
        return (compaction for ranges in self.by_source.values() for compaction in ranges)

    def known(self, source: str) -> list[Mapping[str, Manifest]]:
        """For `manifest.chain`."""
        return [compaction.known for compaction in self.by_source.get(source, ())]

    def at(self, source: str, seq: int) -> Compaction | None:
        """The range that has an order key of the source's log."""
        ranges = self.by_source.get(source, ())
        number = bisect_right(ranges, seq, key=lambda compaction: compaction.begin.seq) - 1
        return ranges[number] if number >= 0 and seq < ranges[number].end.seq else None

    def counts_of(self, manifest: Manifest) -> BatchCounts | None:
        """The counts of a batch as it was staged; None for one that is not compacted."""
        place = manifest.begin.position.seq
        compaction = None if manifest.copied else self.at(manifest.source, place)
        if compaction is None:
            return None
        return compaction.counts[
            bisect_right(compaction.batches, place, key=lambda batch: batch.begin.position.seq) - 1
        ]

    def instead_of(self, path: str, table: str, schema_id: str, max_seq: int) -> Part | None:
        """The file that has the rows of a batch's part, among others; None if the part is read itself."""
        name = parse_part(path)
        compaction = None if name is None else self.at(name.source, name.seq)
        part = None if compaction is None else compaction.part_with(table, schema_id, max_seq)
        return None if part is None or part.path == path else part


NO_COMPACTIONS = Compactions()


def read(store: ObjectStore, sources: Iterable[str]) -> Compactions:
    """Raises DataAtRisk (stage.damaged), Refused (install.version)."""
    return Compactions({source: tuple(_apart(records(store, source))) for source in sources})


def records(store: ObjectStore, source: str) -> Iterator[Compaction]:
    """All records of a source, by where their ranges begin. Raises what `read` does."""
    for info in store.list(compactions_prefix(source)):
        if info.path.endswith(".json"):
            try:
                data = store.get(info.path)
            except FilesLost:
                continue  # purged, since it was listed
            yield parse(data, info.path, source, store.uri)


def parse(data: bytes, path: str, source: str, where: str) -> Compaction:
    """A record from its text. Raises DataAtRisk (stage.damaged), Refused (install.version)."""
    with reading_record(path, where, "record of a compacted range", remedy=_RESTORE):
        compaction = Compaction.from_bytes(data)
        if compaction.source != source or compaction_path(source, compaction.begin) != path:
            raise ValueError(f"it is that of another range, {compaction.source} {compaction}")
    return compaction


def files_of(compaction: Compaction) -> list[str]:
    """All that there is of a range, in the order in which it is removed: the record last, by which the rest is found.
    Parts that were left as they are are those of their batches."""
    files = [part.path for part in compaction.parts if parse_compacted(part.path)]
    return [
        *files,
        originals_removed_path(compaction.source, compaction.begin),
        compaction_path(compaction.source, compaction.begin),
    ]


def _apart(compactions: Iterable[Compaction]) -> Iterator[Compaction]:
    """Two that were made at once, by a process that had lost its turn, may overlap: the first one counts."""
    end = -1
    for compaction in compactions:
        if compaction.begin.seq < end:
            log.warning(
                "source %s: the compacted range %s is not used: another one overlaps it", compaction.source, compaction
            )
            continue
        end = compaction.end.seq
        yield compaction
