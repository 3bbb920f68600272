"""The database as of a position: which cut that is, and the SQL that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError

from cdc_core.config import IcebergTarget, Pipeline
from cdc_core.errors import Refused, UsageError
from cdc_core.lake.catalogs import catalog_answers, identifier_named, name_of, open_catalog
from cdc_core.model.cut import Cut
from cdc_core.model.position import Position
from cdc_core.model.windows import from_us
from cdc_core.operations.lake.lake_ready import lake_of
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.stage import cuts
from cdc_core.stage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class CutMoment:
    """One of: a position of the only source, a set of GTIDs, a time in µs UTC; or none of them: the newest cut."""

    position: Position | None = None
    gtids: str = ""
    time_us: int | None = None

    def has(self, cut: Cut) -> bool:
        """Whether a cut has nothing from after the moment."""
        ends = cut.sources.values()
        if self.position is not None:
            return all(end.position <= self.position for end in ends)
        if self.gtids:
            wanted = GtidSet.parse(self.gtids)
            return all(end.gtid_set and wanted.contains(GtidSet.parse(end.gtid_set)) for end in ends)
        return self.time_us is None or all(end.committed_us <= self.time_us for end in ends)


def one_lake(pipeline: Pipeline, name: str | None) -> IcebergTarget:
    """The lake of this name, or the only one. Raises UsageError (usage.argument)."""
    lakes = [target.name for target in pipeline.targets if isinstance(target, IcebergTarget)]
    if name is None and len(lakes) == 1:
        return lake_of(pipeline, lakes[0])
    if name not in lakes:
        raise UsageError(
            f"The pipeline has no lake named {name!r}." if name else f"The pipeline has {len(lakes)} lakes.",
            where="--target",
            code="usage.argument",
            remedy=f"add --target, one of: {', '.join(lakes)}" if lakes else "add a target with kind: iceberg",
        )
    return lake_of(pipeline, name)


def cut_at(store: ObjectStore, target: IcebergTarget, moment: CutMoment) -> Cut:
    """The last cut that has nothing from after a moment. Raises Refused (stage.as_of), and what reading cuts raises."""
    first: Cut | None = None
    for _, cut in cuts.newest_first(store, target.name):
        if moment.has(cut):
            return cut
        first = cut
    begins = "" if first is None else ", ".join(f"{name} {source.position}" for name, source in first.sources.items())
    raise Refused(
        f"The lake {target.name!r} has no cut yet."
        if first is None
        else f"Every cut of {target.name!r} has changes from after this moment; the first one is at {begins}.",
        where=f"targets.{target.name}",
        code="stage.as_of",
        remedy="each run that commits makes a cut: run first; or ask for a later moment",
    )


@dataclass(frozen=True, slots=True)
class CutView:
    """How to read a mirror at a cut. metadata: of the table, for readers without a catalog; "" if there is no mirror.
    lacks: as in CutTable."""

    logical: str
    identifier: tuple[str, ...]
    snapshot: int | None
    metadata: str
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return name_of(self.identifier)

    def sql(self, engine: str, catalog: str) -> str:
        """A query of spark, trino or duckdb."""
        if engine == "duckdb":
            moment = "" if self.snapshot is None else f", snapshot_from_id = {self.snapshot}"
            query = f"SELECT * FROM iceberg_scan('{self.metadata}'{moment})"
        else:
            words = "VERSION AS OF" if engine == "spark" else "FOR VERSION AS OF"
            query = f"SELECT * FROM {quoted(engine, catalog, *self.identifier)}"
            query += "" if self.snapshot is None else f" {words} {self.snapshot}"
        return query if self.snapshot is not None else f"{query} WHERE false"


def quoted(engine: str, *names: str) -> str:
    """A name of several parts, as an engine takes it."""
    mark = "`" if engine == "spark" else '"'
    return ".".join(name if name.isidentifier() else f"{mark}{name}{mark}" for name in names)


def views(target: IcebergTarget, cut: Cut) -> list[CutView]:
    """A table whose snapshot is gone lacks it. Raises Refused (stage.as_of) where those of all tables are, and what the
    catalog raises."""
    cut_views, gone = [], 0
    with open_catalog(target) as catalog, catalog_answers(target):
        for cut_table in cut.tables:
            number = cut_table.snapshot
            identifier, lost, metadata = identifier_named(target, cut_table.name), number is not None, ""
            with suppress(NoSuchTableError):
                table = catalog.load_table(identifier)
                lost = number is not None and table.metadata.snapshot_by_id(number) is None
                metadata = "" if lost else table.metadata_location
            gone += lost
            why = [f"its snapshot {number} is gone: it expired, or the mirror was dropped"] if lost else []
            cut_views.append(CutView(cut_table.logical, identifier, number, metadata, (*cut_table.lacks, *why)))
    if gone and gone == sum(cut_table.snapshot is not None for cut_table in cut.tables):
        raise Refused(
            f"The snapshots of {cut.run_id} have expired.",
            where=f"targets.{target.name}",
            code="stage.as_of",
            remedy="ask for a later moment; `keep` of the target says how long cuts stay",
        )
    return cut_views


def shown(cut: Cut) -> Mapping[str, str]:
    """The sources of a cut, in words."""
    return {
        name: f"{source.position}, {from_us(source.committed_us).isoformat()}"
        + (f", {source.gtid_set}" if source.gtid_set else "")
        for name, source in sorted(cut.sources.items())
    }
