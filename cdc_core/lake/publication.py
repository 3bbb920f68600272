"""Publishing: the snapshots of all tables of a run become what readers see, by compare-and-set.

    SQL catalogs        one transaction: all tables or none
    REST catalogs       one `transactions/commit`, where the server offers it: all or none
    others              one table after the other; a run that was killed in between is completed by its own retry, or
                        overtaken by the next run, which reads what is there

Each table is required to be at the snapshot that the run is based on. So of two runs, or of two attempts of one, one
publishes; and a table that somebody else has changed meanwhile is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from cdc_core.errors import DataAtRisk, RetryLater, repeat_from
from cdc_core.lake.catalogs import name_of
from cdc_core.lake.commits import TableCommit, commit, in_one_step
from cdc_core.lake.snapshots import (
    MAIN,
    NUMBER,
    RUN,
    WITH_CHANGES,
    WITH_TOMBSTONES,
    FileChange,
    LiveFiles,
    ancestry,
    head,
    latest_schema,
    next_number,
    number_of,
    on_branch,
    pointing,
    require_welcome,
    said,
    snapshot_of,
)

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A snapshot that a run has made of a table. identifier: of the table. base: the snapshot that readers saw then;
    None: none. branch: whose head it is."""

    identifier: tuple[str, ...]
    base: int | None
    snapshot: int
    branch: str


@dataclass(frozen=True, slots=True)
class BaseSnapshots:
    """The snapshots of a mirror and of its tombstones that a run is based on; None: the table is empty. identifier: of
    the mirror."""

    table: str
    identifier: tuple[str, ...]
    rows: int | None
    tombstones: int | None


BRANCHES = "lockstep_"
"""How the branches of runs begin."""


def branch_of(run_id: str) -> str:
    """The branch of a run's snapshots."""
    return f"{BRANCHES}{re.sub(r'[^A-Za-z0-9_]+', '_', run_id)}"


def on_run_branch(
    bases: Sequence[LiveFiles], changes: Sequence[FileChange], said_of_run: Mapping[str, str]
) -> Iterator[LakeSnapshot]:
    """Makes what a run does to the tables of a mirror, on the run's branch. bases, changes: of each, as
    `MirrorTables.parts` has them. said_of_run: the properties RUN and PLAN.

    Tombstones come first: where a catalog publishes one table after the other, no key must lose its row before it has
    its tombstone. The mirror comes last, and says to which snapshots of the others it belongs. Raises what the catalog
    raises."""
    branch, properties = branch_of(said_of_run[RUN]), dict(said_of_run)
    for base, change, name in zip(bases[1:], changes[1:], (WITH_TOMBSTONES, WITH_CHANGES), strict=False):
        last = number_of(base.table, base.snapshot)
        if change:
            last = next_number(base.table, base.snapshot)
            yield _on_branch(base, change, {**said_of_run, NUMBER: str(last)}, branch)
        properties[name] = str(last)
    if any(changes):
        properties[NUMBER] = str(next_number(bases[0].table, bases[0].snapshot))
        yield _on_branch(bases[0], changes[0], properties, branch)


def _on_branch(base: LiveFiles, change: FileChange, properties: Mapping[str, str], branch: str) -> LakeSnapshot:
    made = snapshot_of(base, change, latest_schema(base.table), properties)
    on_branch(made, branch)
    return LakeSnapshot(made.table.name(), made.base, made.number, branch)


def publishes_together(catalog: Catalog) -> str:
    """How the catalog publishes several tables, in words."""
    at_once = in_one_step(catalog)
    return f"all tables of a run {at_once}" if at_once else "one table of a run after the other"


def publish(catalog: Catalog, snapshots: Sequence[LakeSnapshot]) -> bool:
    """Whether there was something to do: not where an earlier attempt has published them.

    Raises RetryLater (lake.compacted) where files were compacted meanwhile, or another run has published;
    DataAtRisk (lake.foreign_write, lake.files_lost), and what the catalog raises.
    """
    for attempt in range(_ATTEMPTS):
        due = []
        for snapshot in snapshots:
            table = catalog.load_table(snapshot.identifier)
            if not _published(table, snapshot):
                _require_base(table, snapshot)
                due.append(TableCommit(table, _requirements(snapshot), _updates(table, snapshot)))
        try:
            commit(catalog, due)
            break
        except CommitFailedException:  # another attempt, or a reader's tag, at the same moment
            if attempt == _ATTEMPTS - 1:
                raise
    return bool(due)


def _published(table: Table, snapshot: LakeSnapshot) -> bool:
    return any(each.snapshot_id == snapshot.snapshot for each in ancestry(table, head(table)))


def _require_base(table: Table, snapshot: LakeSnapshot) -> None:
    if table.metadata.snapshot_by_id(snapshot.snapshot) is None:
        raise DataAtRisk(
            f"The snapshot {snapshot.snapshot} of {name_of(snapshot.identifier)} is gone before it was published.",
            where=name_of(snapshot.identifier),
            code="lake.files_lost",
            remedy=f"{repeat_from('filter')}. Keep the branches lockstep_* from what expires snapshots",
        )
    require_seen(table, snapshot.base)


def require_seen(table: Table, base: int | None) -> None:
    """Raises RetryLater (lake.compacted) unless readers still see the snapshot that a run is based on; DataAtRisk
    (lake.foreign_write)."""
    now = head(table)
    if (now.snapshot_id if now is not None else None) == base:
        return
    for each in ancestry(table, now):
        if each.snapshot_id == base:
            break
        if not said(each, RUN):
            require_welcome(table, each)
    raise RetryLater(
        f"{name_of(table.name())} has a newer snapshot than the run is based on: files were compacted meanwhile, or "
        "another run has published.",
        where=name_of(table.name()),
        code="lake.compacted",
        remedy=repeat_from("filter"),
    )


def _requirements(snapshot: LakeSnapshot) -> tuple[TableRequirement, ...]:
    return (AssertRefSnapshotId(ref=MAIN, snapshot_id=snapshot.base),)


def _updates(table: Table, lake_snapshot: LakeSnapshot) -> tuple[TableUpdate, ...]:
    snapshot = table.metadata.snapshot_by_id(lake_snapshot.snapshot)
    assert snapshot is not None
    updates: list[TableUpdate] = []
    if snapshot.schema_id is not None and snapshot.schema_id != table.metadata.current_schema_id:
        updates.append(SetCurrentSchemaUpdate(schema_id=snapshot.schema_id))
    if number := said(snapshot, NUMBER):
        updates.append(SetPropertiesUpdate(updates={NUMBER: number}))
    updates.append(pointing(MAIN, lake_snapshot.snapshot))
    if lake_snapshot.branch in table.metadata.refs:
        updates.append(RemoveSnapshotRefUpdate(ref_name=lake_snapshot.branch))
    return tuple(updates)
