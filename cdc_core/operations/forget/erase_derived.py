"""What was made of staged rows: the files of runs, and findings of verifications.

The files of a run can be made again, so those of a run that had one of the keys go as a whole, but for its plan, which
has no values. Evidence is the only record of what was proven: it loses the findings about the keys, says how many, and
gets a new digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.model.paths import segment
from cdc_core.model.run_plan import PLAN, RUNS
from cdc_core.operations.forget.erased_keys import ErasedKeys
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import evidence
from cdc_core.stage.layout import ERASURES, manifests_prefix
from cdc_core.stage.objects import ObjectStore, find

_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run that go: all of one that has rows with one of the keys; of another, those that were left half
    by a task that was killed, which may. paths: in the order in which they are removed: those by which the others are
    found come last. rows: with one of the keys, in all of its files."""

    folder: str
    paths: Sequence[str]
    rows: int


def find_runs(store: ObjectStore, pipeline: str, keys: ErasedKeys) -> Iterator[RunFiles]:
    """Of the pipeline's runs: a stage may be shared."""
    of_table = f"/cdc_table={segment(keys.table)}/"
    folders: dict[str, list[str]] = {}
    for info in store.list(RUNS):
        folders.setdefault("/".join(info.path.split("/", 3)[:3]), []).append(info.path)
    for folder, paths in folders.items():
        if not _is_own(store, f"{folder}/{PLAN}", pipeline):
            continue
        rows = {path: _rows_in(store, path, keys) for path in paths if of_table in path and path.endswith(".parquet")}
        halves = [path for path, number in rows.items() if number is None]
        if count := sum(filter(None, rows.values())):
            gone = [path for path in paths if not path.endswith(f"/{PLAN}")]
            yield RunFiles(folder, sorted(gone, key=lambda path: bool(rows.get(path))), count)
        elif halves:
            yield RunFiles(folder, halves, 0)


def _is_own(store: ObjectStore, plan: str, pipeline: str) -> bool:
    """plan: of any version. Without one, nothing can use the files."""
    raw = find(store, plan)
    try:
        return raw is None or json.loads(raw)["pipeline"] == pipeline
    except (ValueError, KeyError, TypeError):
        return True


def _rows_in(store: ObjectStore, path: str, keys: ErasedKeys) -> int | None:
    """All of them, if the file does not have the columns of the key; None if it is half of a file."""
    try:
        with store.open_input(path) as source, pq.ParquetFile(source) as parquet:
            if not set(keys.key) <= set(parquet.schema_arrow.names):
                return int(parquet.metadata.num_rows)
            return sum(keys.rows_among(rows) for rows in parquet.iter_batches(_ROWS))
    except pa.ArrowException:
        return None


def find_evidence(store: ObjectStore, pipeline: str, keys: ErasedKeys) -> Iterator[tuple[str, int]]:
    """The paths of the pipeline's evidence with findings about the keys, and how many.

    Raises DataAtRisk (verify.evidence).
    """
    for info in store.list(evidence.EVIDENCE):
        document = evidence.read(store, info.path)
        tables = [table for table in document["tables"] if table["table"] == keys.table]
        found = sum(keys.has(finding["key"]) for table in tables for finding in table["findings"])
        if found and document["pipeline"] == pipeline:
            yield info.path, found


def discard_temporary(opened: OpenPipeline) -> None:
    """Removes what killed writers have left of documents with keys: manifests, evidence, records of erasures. Nobody
    else writes those of this pipeline now."""
    folders = (
        *(manifests_prefix(source.name) for source in opened.pipeline.sources),
        *(evidence.folder_of(target.name) for target in opened.pipeline.targets),
        ERASURES,
    )
    for leftover in opened.store.leftovers():
        if not leftover.upload and leftover.path.startswith(folders):
            opened.store.discard(leftover)


def erase_evidence(store: ObjectStore, path: str, keys: ErasedKeys) -> None:
    document = evidence.read(store, path)
    for table in document["tables"]:
        if table["table"] == keys.table:
            kept = [finding for finding in table["findings"] if not keys.has(finding["key"])]
            table["erased"] = table.get("erased", 0) + len(table["findings"]) - len(kept)
            table["findings"] = kept
    evidence.put(store, path, document)
