"""Tombstones that nothing can ask for any more: the staged history begins after them.

In place of those that go, one without a key stays, with the version of the newest of them. To a change that is older,
as a run may have that began before the history was purged, it says what they would have said. Tombstones that are
compared with changes of other sources are so by time, and all stay: of them, nothing says that they were purged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate
from pyroaring import BitMap

from cdc_core.history.codes import whole
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.compaction import DELETED_SHARE, change_due, rewritten
from cdc_core.lake.data_files import KeyedFiles, LiveFile, OpenFile, deleted_rows, without, write_rows
from cdc_core.lake.lake_tables import key_names
from cdc_core.lake.snapshots import (
    MAIN,
    NUMBER,
    PLAN,
    RUN,
    LiveFiles,
    at_main,
    head,
    latest_schema,
    own,
    pointing,
    said,
    snapshot_of,
    table_files,
)
from cdc_core.lake.truncated import truncates_in
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN, decode

_SEQ, _PLACE, _NAME = slice(8, 16), slice(8, 24), slice(24, VERSION_BYTES)
"""Parts of a version (model/version.py): its order key, with the row, and of which source it is."""


def forget_tombstones(table: Table, begins: Mapping[str, int]) -> int:
    """Removes tombstones from before the staged history of their source begins, if they are a fifth or more; how many.
    begins: by source of the pipeline, the least order key that a staged change, or a copied row, may have.

    Raises DataAtRisk (lake.foreign_write), and what the catalog raises."""
    schema, last = latest_schema(table), own(table, head(table))
    key = key_names(table)
    live, files = LiveFiles(table, head(table), key), table_files(table, schema, key)
    found = _older(files, live.files, begins)
    if last is None or found is None:
        return 0
    gone, newest = found
    # The newest one stays for all of them, without its key.
    keyless = truncates_in(files, live.files).get(newest)
    if keyless is not None:
        gone[keyless[0]] -= BitMap([keyless[1]])
    newest_alone = [pa.array([newest if field.name == VERSION_COLUMN else None], field.type) for field in files.columns]
    row = pa.table(newest_alone, schema=files.columns)
    added = list(write_rows(files, row)) if keyless is None else []
    due = change_due(live.files, added, {path: some for path, some in gone.items() if some})
    change = due.done(new for rewrite in due.rewrites for new in rewritten(files, rewrite))
    made = snapshot_of(live, change, schema, {name: said(last, name) for name in (RUN, PLAN, NUMBER)})
    updates = AddSnapshotUpdate(snapshot=made.listed(table)), pointing(MAIN, made.number)
    commit(table.catalog, [TableCommit(table, (at_main(live.snapshot),), updates)])
    return sum(map(len, gone.values())) - len(added)


def _older(
    files: KeyedFiles, live: Sequence[LiveFile], begins: Mapping[str, int]
) -> tuple[dict[str, BitMap], bytes] | None:
    """(by file, the positions of the tombstones that go; the newest version of them); None if they are few, or may be
    compared with changes of other sources or source tables."""
    gone: dict[str, BitMap] = {}
    count, names, newest = 0, set[bytes](), b""
    for file in live:
        dead = deleted_rows(files, file) if file.deletes else BitMap()
        with OpenFile(files, file.path) as opened:
            for group in opened.groups:
                start = int(opened.starts[group])
                rows = opened.read(group, [VERSION_COLUMN]).append_column("at", _numbers(opened, group))
                rows = without(rows, start, dead)
                versions = whole(rows.column(0))
                names |= set(pc.unique(_part(versions, _NAME)).to_pylist())
                if len(names) > 1:
                    return None
                version = decode(versions[0].as_py()) if len(versions) else None
                if version is not None and len(begins) > 1 and not version.origin:
                    return None
                begin = begins.get(version.source, 0) if version is not None else 0
                older = rows.filter(pc.less(_part(versions, _SEQ), begin.to_bytes(8)))
                count += rows.num_rows
                if older.num_rows:
                    gone[file.path] = gone.get(file.path, BitMap()) | BitMap(np.asarray(older.column("at"), np.uint32))
                    newest = max(newest, *whole(older.column(0)).to_pylist(), key=lambda version: version[_PLACE])
    return (gone, newest) if sum(map(len, gone.values())) > max(1, DELETED_SHARE * count) else None


def _numbers(opened: OpenFile, group: int) -> pa.Array:
    """The positions of a group's rows."""
    return pa.array(np.arange(opened.starts[group], opened.starts[group + 1]))


def _part(versions: pa.BinaryArray, part: slice) -> pa.BinaryArray:
    return pc.binary_slice(versions, part.start, part.stop)
