"""What all jobs share: pipeline, plan, set or target, and the paths of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from cdc_core.config import MysqlTarget, Pipeline, Target
from cdc_core.errors import FilesLost, LockstepError
from cdc_core.model.run_plan import (
    FilterCounts,
    MergeCounts,
    MergeSet,
    MergeTable,
    RunPlan,
    TargetRun,
    counts_from_bytes,
    counts_path,
    table_folder,
)
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.table_rules import (
    keys_apart,
    require_none_set_aside,
    require_planned,
    rows_lacking_values,
)
from cdc_core.stage.horizon import require_unpurged
from cdc_core.stage.intact import damage
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.reading.destination import (
    Destination,
    TableUse,
    TargetSurvey,
    checked_destination,
    prepared_destinations,
)
from spark_jobs.spark_failures import found
from spark_jobs.spark_session import parallelism

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One task of one run. open_spark: gives the session, which names the caller's thread in Spark's UI; it is called
    only for what Spark has to do, because a start of Spark takes longer than all the work of a small run
    (table_tasks.py)."""

    open_spark: Callable[[], SparkSession]
    pipeline: Pipeline
    plan: RunPlan
    store: ObjectStore
    set_name: str | None = None
    target_name: str | None = None

    @property
    def spark(self) -> SparkSession:
        return self.open_spark()

    @cached_property
    def parallelism(self) -> int:
        """How many tasks Spark does at once; 1 where the driver does the job. A Connect endpoint answers by a query, so
        it is asked once."""
        return 1 if self.small else parallelism(self.spark)

    @cached_property
    def small(self) -> bool:
        """Whether the driver does the job itself, without Spark."""
        return self.plan.by_driver(self.pipeline.spark.driver_rows)

    @property
    def target(self) -> Target:
        assert self.target_name is not None
        return self.pipeline.target(self.target_name)

    @property
    def database(self) -> MysqlTarget:
        """The target, of the jobs that are for servers of MySQL and MariaDB."""
        return self.pipeline.database(self.target.name)

    @property
    def target_run(self) -> TargetRun:
        return self.plan.target(self.target.name)

    @property
    def merge_set(self) -> MergeSet:
        if self.set_name is None and self.target_name is not None:
            return self.plan.merge_set(self.target_run.merge_set)
        assert self.set_name is not None
        return self.plan.merge_set(self.set_name)

    def merged(self, table: str) -> str:
        return table_folder(self.plan.merged_folder(self.merge_set.name), table)

    def filtered(self, table: str) -> str:
        return table_folder(self.plan.filtered_folder(self.target.name), table)

    def rejected(self, table: str) -> str:
        return table_folder(self.plan.rejected_folder(self.target.name), table)

    def quarantine(self, table: str) -> str:
        return table_folder(self.plan.quarantine_folder(self.target.name), table)

    def tables(self) -> tuple[MergeTable, ...]:
        """The tables of the set that the target takes; all of them when no target is named."""
        if self.target_name is None:
            return self.merge_set.tables
        return tuple(table for table in self.merge_set.tables if self.target.table(table.table) is not None)

    def schemas(self, table: MergeTable) -> list[TableSchema]:
        """The definitions of a table's files, in the order in which they first come."""
        return self.plan.schemas_of(table)

    @contextmanager
    def reading_staged(self) -> Iterator[None]:
        """Around work that reads the set's staged files.

        Raises Refused (plan.purged), DataAtRisk (stage.damaged) in place of the error in which the work ends because
        files were removed or cut off meanwhile. A purge may remove those of a replay, whose batches every target has
        committed.
        """
        try:
            yield
        except Exception as error:
            ours = error if isinstance(error, LockstepError) else found(error)
            if ours is not None and not isinstance(ours, FilesLost):
                raise
            files = [file for table in self.merge_set.tables for file in table.files]
            require_unpurged(self.store, [file.batch_id for file in files])
            if ours is None:
                for file in files:
                    if (damaged := damage(self.store, file, deep=False)) is not None:
                        raise damaged from error
            raise

    def destinations(self, tables: Sequence[MergeTable], *, writing: bool = True) -> list[Destination]:
        """The destinations of several tables. Each database of the target is asked once for all of them. writing: as in
        TableUse. Raises Refused (run.clear_task, config.table_rule)."""
        require_planned(self.target, self.plan)
        for table in tables if writing else ():
            require_none_set_aside(self.target, table)
        with TargetSurvey(self.database, [table.table for table in tables]) as survey:
            return prepared_destinations(survey, [self._checked(table, survey, writing=writing) for table in tables])

    def _checked(self, table: MergeTable, survey: TargetSurvey, *, writing: bool) -> Destination:
        use = TableUse(
            key=table.key,
            writing=writing,
            partial=rows_lacking_values(table) > 0,
            shared=self.shared(table),
            pipeline=self.pipeline.pipeline,
        )
        return checked_destination(survey, table.table, self.plan.current_schemas(table), use)

    def shared(self, table: MergeTable) -> bool:
        """Whether several source tables may feed the table and must not share keys: each row says its own."""
        return keys_apart(self.pipeline, table.table, table.key, table.shared_keys, self.schemas(table))

    def merged_files(self, table: MergeTable) -> list[str]:
        """The merged files that count. Raises DataAtRisk (stage.damaged)."""
        return self._counted(self.merged(table.table), self.merge_counts.get(table.table))

    def filtered_files(self, table: MergeTable) -> list[str]:
        """The files to write. Raises DataAtRisk (stage.damaged)."""
        return self._counted(self.filtered(table.table), self._filter_counts.get(table.table))

    @cached_property
    def merge_counts(self) -> dict[str, MergeCounts]:
        """The counts of the set's tables, by name."""
        raw = self.store.get(counts_path(self.plan.merged_folder(self.merge_set.name)))
        return {counts.table: counts for counts in counts_from_bytes(raw, MergeCounts)}

    @cached_property
    def _filter_counts(self) -> dict[str, FilterCounts]:
        raw = self.store.get(counts_path(self.plan.filtered_folder(self.target.name)))
        return {counts.table: counts for counts in counts_from_bytes(raw, FilterCounts)}

    def _counted(self, folder: str, counts: MergeCounts | FilterCounts | None) -> list[str]:
        """Each table has some files, if only an empty one."""
        if counts is not None and counts.files:
            return [f"{folder}/{name}" for name in counts.files]
        raise FilesLost(
            "The counts of an earlier task of the run name no files.",
            where=self.store.location(folder),
            remedy="clear the run from its plan task on",
        )
