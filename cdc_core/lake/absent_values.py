"""Values that the log did not carry (partial row images): a mirror's file has whole rows, so they are read from the row
that it holds, under the row's key or under the keys that it had before. A row that says that it is deleted gives no
values: what comes after a delete is another row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import ValuesAbsent
from cdc_core.history.codes import whole
from cdc_core.lake.data_files import GROUP_BYTES, KeyedFiles, LiveFile
from cdc_core.lake.held_rows import HeldRows, Numbers, held_rows, rows_at, shown_key
from cdc_core.model.merged_columns import KEY_CHAIN, MergedOp
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.staged_columns import ABSENT, OP, lacking
from cdc_core.model.version import newer_or_equal

FILLED_BYTES = 64 << 20
"""About so much memory the values take that are read at once, however short the changes that lack them are."""


def parts_to_fill(live: Sequence[LiveFile], rows: pa.Table) -> list[int]:
    """The edges of the parts in which merged rows are filled: in each, no more lack values than the mirror has rows in
    FILLED_BYTES. There are never more parts than the whole mirror would need, whose rows alone fill any."""
    if ABSENT not in rows.column_names:
        return [0, rows.num_rows]
    lacking = np.flatnonzero(np.asarray(whole(rows.column(ABSENT).is_valid())))
    held, size_bytes = sum(file.rows for file in live), sum(file.groups for file in live) * GROUP_BYTES
    most = max(FILLED_BYTES * max(held, len(lacking)) // max(size_bytes, 1), 1)
    return [0, *lacking[most::most].tolist(), rows.num_rows]


def filled(
    files: KeyedFiles, live: Sequence[LiveFile], rows: pa.Table, held: HeldRows, due: npt.NDArray[np.bool_]
) -> pa.Table:
    """The merged rows with all values. held: of each row, which is present. due: which will be written; of the others
    nothing is read. Deletes of rows that the mirror does not hold stay as they are.

    Raises DataAtRisk (target.absent_values)."""
    batch = pa.RecordBatch.from_arrays([whole(rows.column(ABSENT))], [ABSENT])
    sets, names_of = lacking(batch)
    number = np.asarray(sets.fill_null(-1))
    at = np.flatnonzero((number >= 0) & due)
    if not len(at):
        return rows
    file, row = _places(files, live, rows, held, at)
    nowhere = (file < 0) & np.asarray(whole(pc.equal(rows.column(OP), MergedOp.UPSERT)))[at]
    if nowhere.any():
        key = rows.select(files.key).slice(int(at[np.flatnonzero(nowhere)[0]]))
        raise ValuesAbsent(
            f"{int(nowhere.sum())} changes lack values that neither the run nor the mirror has, such as that of the "
            f"row {shown_key(key)}.",
            where=files.location,
            remedy="copy the table (`lockstep snapshot`), and run again; binlog_row_image = FULL on the source avoids "
            "this",
        )
    at, file, row = at[file >= 0], file[file >= 0], row[file >= 0]
    names = sorted(frozenset().union(*names_of) & set(files.columns.names) & set(rows.column_names))
    values = rows_at(files, live, file, row, names)
    for name in names:
        without = np.array([name in present for present in names_of], bool)[number[at]]
        mask = np.zeros(rows.num_rows, bool)
        mask[at[without]] = True
        column = whole(rows.column(name))
        found = whole(values.column(name)).filter(pa.array(without)).cast(column.type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.replace_with_mask(column, pa.array(mask), found))
    done = np.zeros(rows.num_rows, bool)
    done[at] = True
    whole_now = pc.if_else(pa.array(done), pa.scalar(None, pa.string()), whole(rows.column(ABSENT)).cast(pa.string()))
    return rows.set_column(rows.column_names.index(ABSENT), ABSENT, whole_now)


def _places(
    files: KeyedFiles, live: Sequence[LiveFile], rows: pa.Table, held: HeldRows, at: Numbers
) -> tuple[Numbers, Numbers]:
    """Where each of these rows has its values: file and position; -1: nowhere."""
    file, row = held.file[at].copy(), held.row[at].copy()
    chains = whole(rows.column(KEY_CHAIN)) if KEY_CHAIN in rows.column_names else None
    if chains is None or chains.null_count == len(chains):
        return file, row
    links = pa.Table.from_batches([pa.RecordBatch.from_struct_array(chains.flatten())])
    if not links.num_rows:
        return file, row
    ends = np.cumsum([0, *chains.value_lengths().fill_null(0).to_pylist()])
    departures = version_bytes(links.combine_chunks().to_batches()[0]).to_pylist()
    older = _older(files, live, links)
    for number, place in enumerate(at.tolist()):
        chain = range(ends[place], ends[place + 1])
        own = held.versions[place].as_py()
        if not chain or (own is not None and newer_or_equal(own, departures[chain[0]])):
            continue
        # What was under the key before the row came there is another row; so is what is as new as a departure.
        file[number], row[number] = -1, -1
        for link in reversed(chain):
            there = older[link]
            if there is not None and not newer_or_equal(there[2], departures[link]):
                file[number], row[number] = there[0], there[1]
                break
    return file, row


def _older(files: KeyedFiles, live: Sequence[LiveFile], links: pa.Table) -> list[tuple[int, int, bytes] | None]:
    """What the mirror holds under each of these keys, of which some may be equal."""
    keys = links.select(files.key)
    first: dict[tuple[object, ...], int] = {}
    links_of = [first.setdefault(tuple(key.values()), at) for at, key in enumerate(keys.to_pylist())]
    held = held_rows(files, live, keys.take(pa.array(first.values(), pa.int64()))).present
    found: Mapping[int, tuple[int, int, bytes]] = {
        at: (int(held.file[number]), int(held.row[number]), held.versions[number].as_py())
        for number, at in enumerate(first.values())
        if held.file[number] >= 0
    }
    return [found.get(at) for at in links_of]
