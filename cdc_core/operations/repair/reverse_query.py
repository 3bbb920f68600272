"""Reverse queries: changes that are old before any target has them are looked up in the source.

Rows that are there are staged as claims by key, keys that are not as deletes, in the order just before the look-up (as
a repair's, claims.py). A run that takes the changes and the claims together writes the row that the source has, and not
one that was replaced long ago; a replay of the stage does the same without the source.

A run asks, not the extractor: only a run knows what no target has, and the log would grow while an extractor waited.
Only runs that apply everything staged ask, because an answer is as of now and belongs to the last interval.

Only what a run is about to apply is asked for: changes of batches that a target lacks, whose commit time is before a
moment. A key whose claim is newer than its change is not asked for again, so that a run which is killed and repeated
continues. It must keep true that nothing depends on the answer: the changes stay staged, and where the source does not
answer, or may not be read, the run applies them as they were logged, and says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.config import Pipeline
from cdc_core.errors import LockstepError, Refused, RetryLater
from cdc_core.meta import PlanView
from cdc_core.model.batch import Manifest
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import LITERAL, SEQ, staged_schema
from cdc_core.model.windows import age_us
from cdc_core.operations.apply.plan import schemas_of
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.copyable import require_ages
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.repair.claims import WantedKeys, claim, finish_former
from cdc_core.operations.repair.repaired_keys import LOOKED_UP
from cdc_core.operations.verify.canonical import has_errors, row_texts
from cdc_core.operations.verify.changed_keys import as_read, changed_keys, key_columns
from cdc_core.operations.verify.feeding import read_feeding
from cdc_core.operations.verify.source_rows import SourceTables, open_source
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.source.capture.column_rules import HASH
from cdc_core.stage.intact import open_intact
from cdc_core.stage.layout import batch_path, parse_copied
from cdc_core.stage.manifest import parse
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Queried:
    """What was staged. keys: looked up. rows, deletes: in the batches. left: keys above `max_keys`, at least. left_out:
    by logical table, why its changes were not looked up. error: why none were."""

    keys: int = 0
    rows: int = 0
    deletes: int = 0
    batches: tuple[str, ...] = ()
    left: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    error: LockstepError | None = None

    def to_json(self) -> dict[str, Any]:
        error = None if self.error is None else {"code": self.error.code, "what": self.error.what}
        counts = {"keys": self.keys, "rows": self.rows, "deletes": self.deletes, "left": self.left}
        return {**counts, "batches": list(self.batches), "left_out": dict(self.left_out), "error": error}

    @property
    def notes(self) -> list[str]:
        """For people; nothing if there was nothing to look up."""
        said = [f"old changes of {table} were not looked up: {why}" for table, why in self.left_out.items()]
        if self.error is not None:
            said.append(
                f"old changes were not looked up in the source, and are applied as they were logged: {self.error}"
            )
        if self.left:
            said.append("more keys than reverse_query.max_keys have old changes: those of the rest were not looked up")
        if self.keys:
            said.append(f"{self.keys:,} keys with old changes looked up: {self.rows:,} rows, {self.deletes:,} deletes")
        return said


def look_up(opened: OpenPipeline, targets: Sequence[str]) -> Queried:
    """Looks up the old changes that one of the targets lacks.

    Raises DataAtRisk (stage.damaged), and what meta and the store raise.
    """
    pipeline, meta, store = opened.pipeline, opened.meta, opened.store
    config = pipeline.reverse_query
    if config is None or not targets:
        return Queried()
    names = [source.name for source in pipeline.sources]
    for name in names:
        with suppress(RetryLater):  # else another process finishes it
            finish_former(opened, name)
    view = meta.plans.find("", names, targets, None)
    view = replace(view, schemas=schemas_of(view, store))
    wanted, left_out, left = _old_changes(
        pipeline, store, view, before_us=meta.now_us() - age_us(config.older_than), most=config.max_keys
    )
    if not wanted:
        return Queried(left_out=left_out, left=left)
    began_s = time.monotonic()

    def waiting(why: str) -> None:
        if time.monotonic() - began_s > config.wait_s:
            raise RetryLater(
                f"snapshot.throttle forbids reading the source now: {why}.",
                where="reverse_query",
                code="repair.waiting",
                remedy="nothing is lost: the next run looks rows up again",
            )

    job = VerifyJob(opened, pipeline.target(targets[0]), wait_s=config.wait_s)
    try:
        with ExitStack() as stack:
            sources = [stack.enter_context(open_source(opened, name, waiting)) for name in names]
            askable = _askable(pipeline, sources, wanted, left_out)
            if not askable:
                return Queried(left_out=left_out, left=left)
            leases = {}
            for name in sorted({source.name for table in askable for source, _ in table.feeding}):
                leases[name] = stack.enter_context(copier_lease(opened, name))
            made = claim(job, askable, leases, queried=True)
    except (RetryLater, Refused) as error:
        log.warning("old changes are not looked up in the source, and are applied as they were logged: %s", error)
        return Queried(left_out=left_out, left=left, error=error)
    rows, deletes = made.count(deleted=False), made.count(deleted=True)
    batches = tuple(batch.batch_id for batch in made.batches)
    keys = sum(len(table.keys) for table in askable)
    return Queried(keys, rows, deletes, batches, left, left_out)


@dataclass
class _Changed:
    """Keys of one logical table with old changes. definition: of their columns. seqs: of the newest change, by text.
    batches: the columns of the key and `_cdc_literal`, with the texts."""

    logical: str
    key: tuple[str, ...]
    definition: TableSchema
    seqs: dict[str, int] = field(default_factory=dict)
    batches: list[tuple[pa.RecordBatch, pa.StringArray]] = field(default_factory=list)

    @property
    def errors(self) -> frozenset[str]:
        return errors_of(self.definition)

    def gone(self, keys: Sequence[str], schema: TableSchema) -> tuple[pa.RecordBatch | None, list[str]]:
        """As claims.Gone."""
        arrow = staged_schema(schema)
        fields = pa.schema([*(arrow.field(name) for name in schema.key), arrow.field(LITERAL)])
        left, found = set(keys), []
        texts: list[str] = []
        for batch, of_batch in self.batches:
            at = []
            for place, text in enumerate(of_batch.to_pylist()):
                if text in left:
                    left.discard(text)
                    at.append(place)
                    texts.append(text)
            if at:
                some = batch.take(pa.array(at))
                columns = [some.column(schema_field.name).cast(schema_field.type) for schema_field in fields]
                found.append(pa.RecordBatch.from_arrays(columns, schema=fields))
        if not found:
            return None, []
        return pa.Table.from_batches(found).combine_chunks().to_batches()[0], texts


def errors_of(schema: TableSchema) -> frozenset[str]:
    """As in canonical.row_texts: the ENUM columns of the key that have a label ''."""
    keyed = (column for column in schema.columns if column.name in schema.key)
    return frozenset(column.name.lower() for column in keyed if column.type.base == "enum" and "" in column.type.labels)


def _old_changes(
    pipeline: Pipeline, store: ObjectStore, view: PlanView, *, before_us: int, most: int
) -> tuple[dict[str, _Changed], dict[str, str], int]:
    """The changes by logical table; why others are left out; and how many keys are left because there are too many."""
    changes: dict[str, _Changed] = {}
    left_out: dict[str, str] = {}
    pending = sorted(set().union(*view.pending.values()))
    asked = _asked(store, view, pending)
    keys = left = 0
    listed = [file for batch in pending for file in view.files.get(batch, ()) if not parse_copied(file.path)]
    for file in as_read(store, listed):
        if file.table in left_out:
            continue
        schema = view.schemas[file.schema_id]
        why = _unfit(pipeline, file.table, schema, changes.get(file.table))
        if why:
            left_out[file.table] = why
            keys -= len(changes.pop(file.table).seqs) if file.table in changes else 0
            continue
        of_table = changes.setdefault(file.table, _Changed(file.table, schema.key, schema))
        known = asked.get(file.table, {})
        for some in changed_keys(store, file, schema, before_us=before_us):
            texts = row_texts(some, key_columns(schema), of_table.errors)
            seqs = some.column(SEQ).to_pylist()
            kept = []
            for place, (text, seq) in enumerate(zip(texts.to_pylist(), seqs, strict=True)):
                if known.get(text, -1) >= seq or has_errors(text):
                    continue
                if text in of_table.seqs:
                    of_table.seqs[text] = max(of_table.seqs[text], seq)
                elif keys < most:
                    of_table.seqs[text] = seq
                    kept.append(place)
                    keys += 1
                else:
                    left += 1
            if kept:
                at = pa.array(kept)
                of_table.batches.append((some.drop_columns([SEQ]).take(at), texts.take(at)))
    return {name: change for name, change in changes.items() if change.seqs}, left_out, left


def _unfit(pipeline: Pipeline, logical: str, schema: TableSchema, changed: _Changed | None) -> str:
    """Why no keys of such changes are looked up; "" if they are, as far as the stage and the pipeline tell."""
    if not schema.key:
        return "it has no key"
    if pipeline.tables.columns.mask and any(column.type == HASH for column in key_columns(schema)):
        return "its key is masked"
    if any(pipeline.counts_newest(target.name, logical, schema.name) for target in pipeline.targets):
        return "the newest of several rows with its key counts, and nothing tells how old a row is that is looked up"
    if other := pipeline.other_key(logical, schema.key):
        return f"a target identifies its rows by other columns ({', '.join(other)})"
    if any(column.type.base not in LOOKED_UP for column in key_columns(schema)):
        return "its key is of a type by which rows are not looked up"
    if changed is not None and key_columns(changed.definition) != key_columns(schema):
        return "its key was redefined"
    return ""


def _asked(store: ObjectStore, view: PlanView, pending: Sequence[str]) -> dict[str, dict[str, int]]:
    """The keys that were looked up before, by logical table, and the order key of the newest look-up."""
    found: dict[str, dict[str, int]] = {}
    for batch in pending:
        files = view.files.get(batch, ())
        if not any(parse_copied(file.path) for file in files):
            continue
        path = batch_path(batch)
        manifest: Manifest = parse(store.get(path), path, store.uri)
        if not any(chunk.queried for chunk in manifest.chunks):
            continue
        for file in files:
            schema = view.schemas[file.schema_id]
            of_table = found.setdefault(file.table, {})
            with open_intact(store, file) as opened:
                for rows in pq.ParquetFile(opened).iter_batches(_ROWS, columns=[*schema.key, LITERAL, SEQ]):
                    texts = row_texts(rows, key_columns(schema), errors_of(schema)).to_pylist()
                    for text, seq in zip(texts, rows.column(SEQ).to_pylist(), strict=True):
                        of_table[text] = max(of_table.get(text, -1), seq)
    return found


def _askable(
    pipeline: Pipeline, sources: Sequence[SourceTables], wanted: Mapping[str, _Changed], left_out: dict[str, str]
) -> list[WantedKeys]:
    """With the source tables that feed each logical table now; adds why others cannot be looked up."""
    fed, _ = read_feeding(sources, wanted.__contains__)
    askable = []
    for logical, changed in wanted.items():
        unread = fed.uncompared.get(logical)
        why = unread.what if unread is not None else _refusal(pipeline, changed, fed.tables.get(logical, ()))
        if why:
            left_out[logical] = why
        else:
            keys, feeding = tuple(changed.seqs), fed.tables[logical]
            askable.append(WantedKeys(logical, changed.key, keys, feeding, changed.gone, changed.errors))
    return askable


def _refusal(pipeline: Pipeline, changed: _Changed, feeding: Sequence[tuple[SourceTables, TableSchema]]) -> str:
    if not feeding:
        return "no table of a source feeds it any more"
    for source, schema in feeding:
        try:
            require_ages(pipeline, source.capture, schema)
            shaped = source.capture.shape(schema)
        except Refused as error:
            return error.what
        if shaped.key != changed.key or key_columns(shaped) != key_columns(changed.definition):
            return f"the key of {schema.name} is another than that of the changes"
        own = {column.name: column.type for column in schema.columns}
        if any(column.type is HASH or own.get(column.name) != column.type for column in key_columns(shaped)):
            return f"the key of {schema.name} is masked"
    return ""
