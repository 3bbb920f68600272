"""What a lake forgets: snapshots beyond the kept cuts, branches of runs that were killed, and files that nothing names.

    kept        what readers see, the newest of our snapshots before it, tags, what is younger than GRACE, and the
                snapshots of the cuts that `keep` asks for, which are tags
    expires     every other snapshot, with the files that only expired snapshots name
    orphans     files of a table's folder that no snapshot names and that are older than ORPHAN_AGE_US: of attempts that
                were killed. A run that takes longer than this between a file and its snapshot would lose it.

Two maintenances at once, or one beside a run, are safe: each commit requires that readers still see what it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow.fs as pa_fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from cdc_core.config import KeptCuts
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.lake_tables import FOLDER
from cdc_core.lake.publication import branch_of
from cdc_core.lake.snapshots import RUN, ancestry, at_main, head, pointing, said
from cdc_core.model.cut import Cut
from cdc_core.model.windows import age_us, from_us

GRACE_US = 3_600_000_000
"""What a reader may have begun to read stays for an hour."""
ORPHAN_AGE_US = 3 * 86_400_000_000
TAGS = "lockstep-cut-"
"""How the tags of kept cuts begin: no branch of a run has a hyphen."""
_TAG = re.compile(rf"{TAGS}\d{{8}}T\d{{12}}")


def tag_of(cut: Cut) -> str:
    return f"{TAGS}{from_us(cut.made_us):%Y%m%dT%H%M%S%f}"


def kept_cuts(cuts: Iterable[Cut], keep: KeptCuts, now_us: int) -> list[Cut]:
    """The newest cut, that of each hour within `hourly`, and that of each day within `daily`. cuts: newest first."""
    found: dict[tuple[str, int], Cut] = {}
    for cut in cuts:
        found.setdefault(("newest", 0), cut)
        age = now_us - cut.made_us
        for word, within, length_us in (("hour", keep.hourly, 3_600_000_000), ("day", keep.daily, 86_400_000_000)):
            if age <= age_us(within):
                found.setdefault((word, cut.made_us // length_us), cut)
    return sorted({cut.made_us: cut for cut in found.values()}.values(), key=lambda cut: cut.made_us)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a table has lost. files: with those that nothing named."""

    snapshots: int
    branches: int
    files: int

    def __add__(self, other: Forgotten) -> Forgotten:
        return Forgotten(self.snapshots + other.snapshots, self.branches + other.branches, self.files + other.files)


def forget(table: Table, tags: Mapping[str, int], now_us: int) -> Forgotten:
    """Expires what is not kept of a table. tags: of kept cuts, with their snapshots, of which what readers see needs no
    tag. Raises what the catalog raises."""
    now = head(table)
    wanted = {tag: number for tag, number in tags.items() if table.metadata.snapshot_by_id(number) is not None}
    updates: list[TableUpdate] = [
        pointing(tag, number, "tag")
        for tag, number in wanted.items()
        if tag not in table.metadata.refs and (now is None or number != now.snapshot_id)
    ]
    dropped = [
        name for name, ref in table.metadata.refs.items() if _is_dropped(table, name, ref.snapshot_id, wanted, now_us)
    ]
    updates += [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in dropped]
    kept = _kept(table, {*wanted, *table.metadata.refs} - set(dropped), wanted, now_us)
    expired = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in kept]
    if expired:
        updates.append(
            RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id for snapshot in expired]})
        )
    if updates:
        commit(table.catalog, [TableCommit(table, (at_main(now),), tuple(updates))])
    staying = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id in kept]
    gone = files_of(table, expired) - files_of(table, staying) if expired else set()
    for path in gone:
        table.io.delete(path)
    branches = sum(not _TAG.fullmatch(name) for name in dropped)
    return Forgotten(len(expired), branches, len(gone))


def _is_dropped(table: Table, name: str, number: int, wanted: Mapping[str, int], now_us: int) -> bool:
    if _TAG.fullmatch(name):
        return name not in wanted
    snapshot = table.metadata.snapshot_by_id(number)
    if snapshot is None or name != branch_of(said(snapshot, RUN)):
        return False  # of somebody else
    return now_us - snapshot.timestamp_ms * 1000 > ORPHAN_AGE_US


def _kept(table: Table, refs: Iterable[str], tags: Mapping[str, int], now_us: int) -> set[int]:
    kept = set(tags.values())
    for name in refs:
        if name in table.metadata.refs:
            kept.add(table.metadata.refs[name].snapshot_id)
    kept |= {
        snapshot.snapshot_id
        for snapshot in table.metadata.snapshots
        if now_us - snapshot.timestamp_ms * 1000 < GRACE_US
    }
    # By it a run knows its number, and that nobody else has written.
    last = next((snapshot for snapshot in ancestry(table, head(table)) if said(snapshot, RUN)), None)
    for snapshot in ancestry(table, head(table)) if last is not None else ():
        kept.add(snapshot.snapshot_id)
        if snapshot is last:
            break
    return kept


def files_of(table: Table, snapshots: Sequence[Snapshot], *, whole: bool = True) -> set[str]:
    """Every file that these snapshots name: lists, manifests, data and deletes. whole: raises FileNotFoundError where a
    list or a manifest is missing; otherwise, what is left of them counts."""
    paths: set[str] = set()
    excused = () if whole else (FileNotFoundError,)
    for snapshot in snapshots:
        paths.add(snapshot.manifest_list)
        with suppress(*excused):
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in paths:
                    paths.add(manifest.manifest_path)
                    with suppress(*excused):
                        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                        paths |= {entry.data_file.file_path for entry in entries}
    return paths


def remove_orphans(table: Table, now_us: int) -> int:
    """Removes the files of the table's folder that nothing names, if they are old; how many. As `unnamed_files`."""
    old = [path for path, written_us in unnamed_files(table) if now_us - written_us > ORPHAN_AGE_US]
    for path in old:
        table.io.delete(path)
    return len(old)


def unnamed_files(table: Table, *, whole: bool = True) -> Iterator[tuple[str, int]]:
    """The files of the table's folder that nothing names, and when each was written, µs UTC. None where another table
    may have the folder too, or the storage cannot be listed. whole: as in `files_of`."""
    own = table.properties.get(FOLDER)
    if own is None or not table.location().endswith(f"/{own}") or not isinstance(table.io, PyArrowFileIO):
        return
    scheme, netloc, folder = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    storage = table.io.fs_by_scheme(scheme, netloc)
    named = files_of(table, table.metadata.snapshots, whole=whole)
    named |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    named |= {
        statistics.statistics_path for statistics in (*table.metadata.statistics, *table.metadata.partition_statistics)
    }
    kept = {PyArrowFileIO.parse_location(location, table.io.properties)[2] for location in named}
    selector = pa_fs.FileSelector(folder, recursive=True, allow_not_found=True)
    for info in storage.get_file_info(selector):
        if info.type == pa_fs.FileType.File and info.path not in kept and info.mtime is not None:
            yield table.location() + info.path.removeprefix(folder), info.mtime_ns // 1000
