"""Staged files and plans for the Spark tests, made from plain changes through the one staged schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from cdc_core.config import Pipeline
from cdc_core.model.merged_columns import KEY_CHAIN, merged_schema
from cdc_core.model.position import order_key
from cdc_core.model.run_plan import (
    FilterCounts,
    MergeCounts,
    MergeSet,
    MergeTable,
    PlannedFile,
    RunPlan,
    TargetRun,
    WriteCounts,
    counts_from_bytes,
    counts_path,
)
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.model.staged_columns import absent_text, staged_schema
from cdc_core.stage.layout import CopiedName, PartName, copied_path, part_path
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.open_part import key_changes
from spark_jobs.job import Job
from spark_jobs.merge_rules import moving_keys, row_columns
from tests.history_model import Change
from tests.lab.pipeline_file import changed, pipeline_document


def staged_pipeline(root: Path, **sections: Any) -> Pipeline:
    """Source `one`, whose stage is the directory. sections: as of `pipeline_document`."""
    document = pipeline_document(
        root, "shop", source="name: one, connection: env:SRC", routes="[]", stage={"uri": root.as_uri()}
    )
    return Pipeline.model_validate(changed(document, **sections))


def counts_of(store: ObjectStore, plan: RunPlan) -> tuple[MergeCounts, FilterCounts, list[WriteCounts]]:
    """What the jobs of a run over one table counted."""
    return (
        counts_from_bytes(store.get(counts_path(plan.merged_folder("0"))), MergeCounts)[0],
        counts_from_bytes(store.get(counts_path(plan.filtered_folder("shards"))), FilterCounts)[0],
        counts_from_bytes(store.get(counts_path(plan.written_folder("shards"))), WriteCounts),
    )


def table_schema(name: str, columns: Mapping[str, str], key: Sequence[str]) -> TableSchema:
    """A definition from `{"id": "bigint", ...}`; text columns are utf8mb4."""
    database, _, table = name.partition(".")
    made = []
    for column, declared in columns.items():
        text = declared.startswith(("varchar", "char", "text", "enum", "json"))
        kind = parse_column_type(declared, charset="utf8mb4" if text else "", collation="utf8mb4_bin" if text else "")
        part = key.index(column) + 1 if column in key else None
        made.append(Column(column, kind, nullable=part is None, key_part=part))
    return TableSchema(database, table, tuple(made))


def staged_table(schema: TableSchema, changes: Sequence[Change]) -> pa.Table:
    names = [column.name for column in schema.columns]
    rows = []
    for change in changes:
        rows.append(
            {
                **{name: change.row.get(name) for name in names},
                "_before": None if change.before is None else {name: change.before.get(name) for name in names},
                "_cdc_op": change.op,
                "_cdc_ts": change.ts_us or change.seq,
                "_cdc_source": change.source,
                "_cdc_file": "binlog.000001",
                "_cdc_pos": change.seq + 100,
                "_cdc_row": change.ordinal,
                "_cdc_seq": change.seq,
                "_cdc_gtid": None,
                "_cdc_literal": None if change.literal is None else list(change.literal.items()),
                "_cdc_absent": absent_text(change.absent),
            }
        )
    return pa.Table.from_pylist(rows, schema=staged_schema(schema))


@dataclass
class Stage:
    """A stage in a directory, and the plan of a run over what was put there."""

    root: Path
    files: dict[str, list[PlannedFile]] = field(default_factory=dict)
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    made: int = 0

    @property
    def uri(self) -> str:
        return f"file://{self.root}"

    def add(self, table: str, schema: TableSchema, changes: Sequence[Change], *, copied: bool = False) -> None:
        """One staged file; its batch is named after its source and its first change. copied: one of a copy."""
        self.schemas[schema.id] = schema
        number = self.made
        self.made += 1
        batch = f"{changes[0].source}/0000-0000001-{changes[0].seq:010d}"
        path = part_path(table, 0, PartName(changes[0].source, order_key(0, 1, changes[0].seq), 1, number))
        if copied:
            batch += f"+{number:012d}"
            path = copied_path(table, 0, CopiedName(changes[0].source, number, 1, 0))
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = staged_table(schema, changes)
        pq.write_table(rows, place, compression="zstd", row_group_size=7)
        data = place.read_bytes()
        absent = sum(bool(change.absent) for change in changes)
        sha256 = hashlib.sha256(data).hexdigest()
        self.files.setdefault(table, []).append(
            PlannedFile(
                path, len(changes), schema.id, batch, len(data), rows.nbytes, sha256, changes[-1].seq, absent,
                key_changes=sum(key_changes(some, schema.key) for some in rows.to_batches()),
            )
        )  # fmt: skip

    def plan(
        self,
        run_id: str,
        keys: Mapping[str, Sequence[str]],
        targets: Sequence[str] = ("shards",),
        on_truncate: str = "stop",
        shared_keys: str = "stop",
    ) -> RunPlan:
        tables = tuple(
            MergeTable(table, tuple(keys[table]), tuple(files), on_truncate, shared_keys)
            for table, files in self.files.items()
        )
        batches = tuple(sorted({file.batch_id for files in self.files.values() for file in files}))
        plan = RunPlan(
            run_id,
            "shop",
            self.uri,
            0,
            3_600_000_000,
            (MergeSet("0", tables),),
            tuple(TargetRun(target, "0", batches) for target in targets),
            dict(self.schemas),
        )
        place = self.root / plan.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(plan.to_bytes())
        return plan

    def begin_again(self) -> None:
        """Forgets the files: the next plan takes only what is added from now on."""
        self.files = {}


def require_merged_columns(job: Job, table: MergeTable) -> pa.Schema:
    """The schema of a table's merged files, which is that of model/merged_columns.py."""
    found = ds.dataset(job.store.location(job.merged(table.table)).removeprefix("file://"), format="parquet").schema
    said = merged_schema(
        list(row_columns(job, table)),
        table.key,
        moving=moving_keys(job, table),
        chained=KEY_CHAIN in found.names,
        shared=job.shared(table),
    )
    assert _types(found) == _types(said), f"{_types(found)} != {_types(said)}"
    return found


def _types(schema: pa.Schema) -> dict[str, str]:
    """Types by column, without what Parquet says of the items of a list."""
    noise = re.compile(r" not null| \('\w+'\)")
    return {field.name: noise.sub("", str(field.type)).replace("element:", "item:") for field in schema}


def merge_by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who merges, in parts: the "driver", or "spark", which gets each file in shares."""
    monkeypatch.setattr(Job, "small", way == "driver")
    monkeypatch.setattr("spark_jobs.merge._parts", lambda *_: 3)
    monkeypatch.setattr("cdc_core.stage.staged_events.SHARE_BYTES", 1)
