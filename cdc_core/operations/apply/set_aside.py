"""Looks at rows that a target rejected and a run set aside, until the target lacks none of them.

The run's ledger names them (meta.runs) until one of three things has happened: a replay has taken the same batches
again; a verification has found all rows equal; or, which this module finds out, the target has something newer under
the key of each of them.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.config import MysqlTarget
from cdc_core.errors import LockstepError
from cdc_core.model.merged_columns import SHARD
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.run_plan import MergeTable, RunPlan, plan_folder, quarantine_folder, table_folder
from cdc_core.model.version import newer_or_equal
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.reading.destination import Destination, TableUse, open_destination
from cdc_core.targets.writing.load import open_session
from cdc_core.targets.writing.versions import versions_of

log = logging.getLogger(__name__)


def forget_replaced(opened: OpenPipeline, target: MysqlTarget, plan: RunPlan) -> None:
    """After a commit of the plan: looks at rows that earlier runs have set aside, of the tables that it has written. An
    error is logged: then they count until the next commit."""
    tables = {table.table: table for table in plan.merge_set(plan.target(target.name).merge_set).tables if table.key}
    for rejected in opened.meta.ledgers.set_aside(target.name):
        if rejected.table not in tables or rejected.run_id == plan.run_id:
            continue
        try:
            run = opened.meta.runs.find(rejected.run_id)
            folder = "" if run is None else quarantine_folder(plan_folder(run.plan_path), target.name)
            if folder and _replaced(
                opened.store, target, plan, tables[rejected.table], table_folder(folder, rejected.table)
            ):
                opened.meta.ledgers.settle(target.name, run_id=rejected.run_id, table=rejected.table)
        except (LockstepError, OSError, pa.ArrowException) as error:
            log.warning("%s: rows of %s that run %s set aside: %s", target.name, rejected.table, rejected.run_id, error)


def _replaced(store: ObjectStore, target: MysqlTarget, plan: RunPlan, table: MergeTable, folder: str) -> bool:
    """Whether the target has something newer than each row in the files of a folder; False if they were removed."""
    paths = [info.path for info in store.list(f"{folder}/") if info.path.endswith(".parquet")]
    if not paths:
        return False
    destination = open_destination(
        target,
        table.table,
        plan.current_schemas(table),
        TableUse(key=table.key, writing=False),
    )
    for path in paths:
        with store.open_input(path) as file:
            rows = pq.read_table(file).combine_chunks()
        if not all(_newer(destination, batch) for batch in rows.to_batches()):
            return False
    return True


def _newer(destination: Destination, rows: pa.RecordBatch) -> bool:
    numbers = np.asarray(rows.column(SHARD))
    with tempfile.TemporaryDirectory(prefix="lockstep-aside-") as scratch:
        for number in np.unique(numbers).tolist():
            shard, mine = destination.shards[number], rows.filter(pa.array(numbers == number))
            with closing(open_session(shard.server, shard.table.database, where=shard.table.name)) as session:
                held = versions_of(
                    session,
                    shard.facts,
                    mine,
                    key=destination.key,
                    freshness=None,
                    scratch=Path(scratch),
                    tolerant=True,
                )
            for one, version in zip(held, version_bytes(mine).to_pylist(), strict=True):
                there = [known for known in (one.row, one.tombstone) if known]
                if not any(newer_or_equal(known, version) for known in there):
                    return False
    return True
