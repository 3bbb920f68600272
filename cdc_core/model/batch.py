"""A staged batch: what its manifest says. It is the commit point and the truth; meta can be rebuilt from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_core.model.coverage import NO_SURVEY, Surveyed, TableCoverage
from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import DefinedSince, TableSchema

MANIFEST_VERSION = 5
"""The version of manifests, and of the other files that say where a chain begins."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of a batch: the changes of one logical table under one definition.

    path:        relative to the stage's root.
    rows:        staged changes in it; `ops` counts them by `_cdc_op`.
    key_changes: updates whose key differs from their before image: each counts as two changes in the ledger.
    absent_rows: those whose values the log did not all carry (`_cdc_absent`).
    size_bytes:  of the file. plain_bytes: about what its rows take in memory, before encodings and compression.
    sha256:      of the file's bytes, hex.
    """

    table: str
    path: str
    rows: Natural
    size_bytes: Natural
    plain_bytes: Natural
    sha256: str
    schema_id: str
    min_seq: Natural
    max_seq: Natural
    ops: Mapping[str, Natural]
    key_changes: Natural = 0
    absent_rows: Natural = 0


@dataclass(frozen=True, slots=True)
class CopiedChunk:
    """A claim: at `low` or later, the rows of `table` after the key `above`, up to and with the key `through`, were
    these. What the log brings from `low` on is newer.

    number:  unique within the source; grows, so that of two claims at one place the later read is the newer.
    table:   the source table, `database.table`.
    above, through: keys as SQL literals in the order of the key's columns; () for no bound, and once rows of the table
             were erased, as a bound is the key of a row.
    ts_us:   `_cdc_ts` of its rows, µs UTC: the watermark of what was staged before the read.
    low:     every transaction before it was visible to the read.
    high:    no transaction from it on was visible to the read.
    rows:    read. Filters of the pipeline may leave some of them out.
    paths:   of its parts.
    by_key:  the claim is about single rows, of which it has those that were there and deletes of others; it says
             nothing about the other rows of the table, and `above` and `through` are ().
    queried: of a claim by key: a reverse query made it, not a repair.
    """

    number: Natural
    table: str
    above: tuple[str, ...]
    through: tuple[str, ...]
    ts_us: TimeUs
    low: Position
    high: Position
    rows: Natural
    paths: tuple[str, ...]
    by_key: bool = False
    queried: bool = False


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """Rows of a batch that were erased (`operations.forget`): how many, of the file at `path`, which had this sha256.

    request: the id of the erasure.
    """

    path: str
    sha256: str
    rows: Natural
    request: str


def at_place(batch_id: str) -> str:
    """The id that a batch of the log has at the place of this batch, which may be one of copied rows."""
    return batch_id.partition("+")[0]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch: all that a source logged between `begin` and `end`, transaction-complete, in one window.

    A batch of copied rows (`chunks`) covers no stretch of the log: it begins and ends at a place that the chain has
    reached, before the batch of the log that begins there. Its claims hold as of that place.

    window_start_us, window_end_us: the interval the batch belongs to, µs UTC, [start, end).
    events:  binlog events between begin and end.
    transactions: transactions with captured rows among them.
    left_out: row events (for a filter: rows) that were not staged, by the rule's name.
    notes:   what an operator should know ("needs re-sync of table X: ...").
    isolated: source tables that are left out because they cannot be read, as of the batch's end, -> since where, why.
    schemas: every definition that a part refers to, by id.
    again_until: of a batch that leads to another server's log: transactions that begin there before this order key may
             have been staged before; 0 where none may.
    coverage: of source tables whose coverage is another than after the batch before; it holds as of the batch's end.
    surveyed: when every captured table that existed had a coverage; seq 0 where the account cannot tell.
    definitions: of source tables whose names the log does not carry, as they became known in this batch.
    chunks: the claims of a batch of copied rows; () for a batch of the log.
    erased: rows that the batch no longer has. Its parts are those without them: the manifest was replaced.
    """

    pipeline: str
    source: str
    epoch: Natural
    begin: Checkpoint
    end: Checkpoint
    window_start_us: TimeUs
    window_end_us: TimeUs
    parts: tuple[Part, ...]
    events: Natural
    transactions: Natural
    created_us: TimeUs
    left_out: Mapping[str, Natural] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    isolated: Mapping[str, str] = field(default_factory=dict)
    definitions: tuple[DefinedSince, ...] = ()
    again_until: Natural = 0
    coverage: Mapping[str, TableCoverage] = field(default_factory=dict)
    surveyed: Surveyed = NO_SURVEY
    chunks: tuple[CopiedChunk, ...] = ()
    erased: tuple[ErasedRows, ...] = ()

    @property
    def copied(self) -> bool:
        """Whether this is a batch of copied rows."""
        return bool(self.chunks)

    def may_repeat(self, begin: Position) -> bool:
        """Whether a batch that begins there may have transactions that were staged before this one: `again_until`."""
        return begin.timeline == self.end.position.timeline and begin.seq < self.again_until

    @property
    def by_key(self) -> bool:
        """Whether this is a batch of single rows that were looked up in the source, as a repair stages them."""
        return any(chunk.by_key for chunk in self.chunks)

    @property
    def repairs(self) -> bool:
        """Whether a repair staged it, which counts against the limit of a day."""
        return any(chunk.by_key and not chunk.queried for chunk in self.chunks)

    @property
    def batch_id(self) -> str:
        """`<source>/<begin position>`, then, of copied rows, `+<number of the first chunk>`: unique, and sorts in the
        order of the chain within a source."""
        number = f"+{self.chunks[0].number:012d}" if self.chunks else ""
        return f"{self.source}/{self.begin.position.name}{number}"

    @property
    def path(self) -> str:
        """The path of the manifest on the stage."""
        return f"manifests/{self.batch_id}.json"

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def to_bytes(self) -> bytes:
        return dumped(self, version=MANIFEST_VERSION, indent=1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Raises what `documents.parsed` does."""
        return parsed(cls, raw, version=MANIFEST_VERSION)
