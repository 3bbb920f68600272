"""The mirrors of a run's tables, at the snapshots that the run is based on. The driver alone asks the catalog; workers
are given files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_core.config import IcebergTarget
from cdc_core.errors import Refused, repeat_from
from cdc_core.lake.catalogs import catalog_answers, identifier, lost_files, name_of, open_catalog, silent
from cdc_core.lake.lake_tables import MirrorTables, mirror_rule, opened, required_schemas
from cdc_core.lake.mirror import Mirror
from cdc_core.lake.publication import BaseSnapshots
from cdc_core.lake.snapshots import LiveFiles
from cdc_core.model.json_codec import dumped, parsed
from cdc_core.model.run_plan import MergeTable, lake_path
from cdc_core.stage.unify import lake_row
from spark_jobs.job import Job
from spark_jobs.merge_rules import change_columns
from spark_jobs.table_tasks import Begin, Place, Result, Sized, in_place


@dataclass(frozen=True)
class OpenMirror:
    """tables, live: for the driver, which makes snapshots; live is of each of `tables.parts`. mirror: for workers."""

    tables: MirrorTables
    live: tuple[LiveFiles, ...]
    mirror: Mirror

    @property
    def rows(self) -> LiveFiles:
        return self.live[0]

    @property
    def tombstones(self) -> LiveFiles:
        return self.live[1]

    @property
    def base(self) -> BaseSnapshots:
        rows, tombstones = (
            files.snapshot.snapshot_id if files.snapshot is not None else None for files in (self.rows, self.tombstones)
        )
        return BaseSnapshots(self.tables.rule.logical, self.tables.rows.name(), rows, tombstones)

    @property
    def name(self) -> str:
        return name_of(self.tables.rows.name())


def lake(job: Job) -> IcebergTarget:
    target = job.target
    assert isinstance(target, IcebergTarget)  # the driver gives its jobs to lakes alone
    return target


@contextmanager
def open_mirrors(job: Job, tables: Sequence[MergeTable]) -> Iterator[dict[str, OpenMirror]]:
    """The mirrors as readers see them now, by logical table. Raises what opening them raises; Refused (run.clear_task)
    for one that has not the columns of the run's rows."""
    target, mirrors = lake(job), dict[str, OpenMirror]()
    with open_catalog(target) as catalog:
        with catalog_answers(target):
            for table in tables:
                name = identifier(target, table.table)
                there = opened(catalog, name, mirror_rule(target, job.pipeline.pipeline, table.table, table.key))
                every = list(change_columns(job, table)) if there.changes is not None else []
                columns = lake_row(table.table, job.schemas(table), job.plan.current_schemas(table))
                if required_schemas(there, list(columns), every=every):
                    raise Refused(
                        f"The table {name_of(name)} does not have the columns of the run's rows.",
                        where=name_of(name),
                        code="run.clear_task",
                        remedy=repeat_from("plan"),
                    )
                live = there.live()
                mirrors[table.table] = OpenMirror(there, live, there.mirror(*live[:2]))
        yield mirrors


def keep_bases(job: Job, mirrors: Mapping[str, OpenMirror]) -> None:
    """For the write: what the positions in filtered/ are of."""
    kept = [mirror.base for mirror in mirrors.values()]
    job.store.put(lake_path(job.plan.filtered_folder(job.target.name)), dumped(kept, list[BaseSnapshots]))


def require_bases(job: Job, mirrors: Mapping[str, OpenMirror]) -> None:
    """Raises Refused (run.clear_task) where readers see other snapshots now than when rows were filtered."""
    kept = parsed(list[BaseSnapshots], job.store.get(lake_path(job.plan.filtered_folder(job.target.name))))
    bases = {base.table: base for base in kept}
    for table, mirror in mirrors.items():
        if bases.get(table) != mirror.base:
            raise Refused(
                f"{mirror.name} has another snapshot than when the run's rows were filtered.",
                where=mirror.name,
                code="run.clear_task",
                remedy=repeat_from("filter"),
            )


def in_lake(job: Job, work: Callable[[Sized, Place], Iterable[Result]]) -> Begin[Sized, Result]:
    """As `in_place`, for work that reads files of the lake. Raises FilesLost (lake.files_lost), RetryLater
    (connection.unreachable)."""
    where = f"targets.{job.target.name}"

    def reading(piece: Sized, place: Place) -> Iterator[Result]:
        try:
            yield from work(piece, place)
        except FileNotFoundError as error:
            raise lost_files(where, str(error)) from error
        except OSError as error:
            if error.errno is not None:
                raise  # of this machine: Arrow's errors of a bucket have no number
            raise silent(where, str(error).rstrip(".")) from error

    return in_place(job, reading)
