"""What there is of the keys, wherever Lockstep keeps something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_core.config import IcebergTarget
from cdc_core.model.schema import TableSchema
from cdc_core.operations.forget import erase_derived, erase_staged
from cdc_core.operations.forget.erase_derived import RunFiles
from cdc_core.operations.forget.erase_staged import StagedRows
from cdc_core.operations.forget.erase_traces import TargetTraces, find_traces
from cdc_core.operations.forget.erased_keys import ErasedKeys
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.stage import start_record
from cdc_core.stage.layout import (
    compacted_prefix,
    copied_prefix,
    parse_compacted,
    parse_copied,
    parse_part,
    table_prefix,
)
from cdc_core.stage.manifest import chain
from cdc_core.stage.table_files import TableFiles
from cdc_core.stage.unify import latest_definitions

if TYPE_CHECKING:
    from cdc_core.operations.forget.erase_lake import LakeTraces


@dataclass(frozen=True, slots=True)
class ErasedPlace:
    """Where rows of the keys are, or were. kind: `staged`, `copied`, `compacted`, `run`, `evidence`, `tombstone`, `lake
    file`, `lake snapshot`, `error`. rows: with one of the keys, there; 0 where files do not say how many."""

    kind: str
    where: str
    rows: int


@dataclass(frozen=True, slots=True)
class ErasureFindings:
    """What there is of the keys. errors: how many, in meta, have their values."""

    staged: Sequence[StagedRows]
    runs: Sequence[RunFiles]
    evidence: Sequence[tuple[str, int]]
    traces: Sequence[TargetTraces]
    lakes: Sequence[LakeTraces]
    errors: int

    @property
    def places(self) -> tuple[ErasedPlace, ...]:
        files = [file for staged in self.staged for file in staged.affected]
        kinds = {"changes": "staged", "snapshot": "copied"}
        places = [
            ErasedPlace(kinds.get(file.part.path.split("/")[0], "compacted"), file.part.path, len(file.found.places))
            for file in files
        ]
        places += [ErasedPlace("run", run.folder, run.rows) for run in self.runs]
        places += [ErasedPlace("evidence", path, rows) for path, rows in self.evidence]
        places += [
            ErasedPlace("tombstone", trace.target, len(trace.of_gone_rows))
            for trace in self.traces
            if trace.of_gone_rows
        ]
        places += [ErasedPlace(*place) for lake in self.lakes for place in lake.places]
        places += [ErasedPlace("error", "the meta database", self.errors)] * bool(self.errors)
        return tuple(places)

    @property
    def keys(self) -> set[str]:
        """Those of the keys that the stage, a target or a lake has rows of."""
        staged = {text for of_source in self.staged for file in of_source.files.values() for text in file.found.keys}
        return staged.union(
            (held.key for trace in self.traces for held in trace.rows), *(lake.keys for lake in self.lakes)
        )

    @property
    def present(self) -> dict[str, int]:
        """By target, how many of its rows have the keys now."""
        found = {trace.target: sum(each.row is not None for each in trace.rows) for trace in self.traces}
        found |= {lake.target.name: lake.present for lake in self.lakes}
        return {target: rows for target, rows in found.items() if rows}


def find_places(opened: OpenPipeline, keys: ErasedKeys, sessions: TargetTables) -> ErasureFindings:
    """Raises what reading the stage, meta and the targets raises."""
    staged = [erase_staged.find(opened.store, source.name, keys) for source in opened.pipeline.sources]
    schemas = latest_definitions(files_of(opened, keys.table).described) if any(rows.files for rows in staged) else ()
    return ErasureFindings(
        staged,
        tuple(erase_derived.find_runs(opened.store, opened.name, keys)),
        tuple(erase_derived.find_evidence(opened.store, opened.name, keys)),
        tuple(find_traces(opened.pipeline, keys, schemas, sessions)),
        _in_lakes(opened, keys, schemas),
        opened.meta.errors.count(keys.without_values),
    )


def _in_lakes(opened: OpenPipeline, keys: ErasedKeys, schemas: Sequence[TableSchema]) -> Sequence[LakeTraces]:
    if not any(isinstance(target, IcebergTarget) for target in opened.pipeline.targets):
        return ()
    from cdc_core.operations.forget.erase_lake import find_in_lakes  # whose library not every installation has

    return tuple(find_in_lakes(opened, keys, schemas))


def files_of(opened: OpenPipeline, table: str) -> TableFiles:
    """The staged files of the table, as manifests name them. Raises Refused (stage.other_pipeline,
    usage.unknown_name)."""
    for source in opened.pipeline.sources:
        start_record.require_own(opened.store, source.name, opened.name)
    manifests = [manifest for source in opened.pipeline.sources for manifest in chain(opened.store, source.name)]
    return TableFiles.at(manifests, table, None)


def staged_paths(opened: OpenPipeline, table: str) -> Iterator[tuple[str, str]]:
    """All files of the table on the stage, whoever names them, and the source of each; "" for any other file."""
    for prefix in (table_prefix, copied_prefix, compacted_prefix):
        for info in opened.store.list(prefix(table)):
            name = parse_part(info.path) or parse_copied(info.path) or parse_compacted(info.path)
            yield info.path, "" if name is None else name.source
