"""Which files of a keyed table a run writes again, so that readers never have many, nor many deletes.

    a file of which more than a fifth is deleted   is written again without these rows
    eight files of about one size                  are written as one, in the order of the key: the next size has an
                                                   eighth as many, so that n runs leave about 8 log8(n) files
    any other file that loses rows                 gets one file of deletes, in place of the one that it had

This is what a table needs at any rate; expiry of snapshots is maintenance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from cdc_core.errors import Refused, repeat_from
from cdc_core.lake.data_files import (
    FILE_BYTES,
    FILE_GROUPS,
    KeyedFiles,
    LiveFile,
    NewFile,
    deleted_rows,
    gathered,
    live_rows,
    write_deletes,
    write_rows,
)
from cdc_core.lake.snapshots import FileChange
from cdc_core.model.places import in_order

DELETED_SHARE = 0.2
"""Measured: reading positions of 10 % of the rows costs PyIceberg nine times, DuckDB five times as much as none."""
MERGED_FILES = 8
_SMALLEST_BYTES = 64 << 10


@dataclass(frozen=True)
class Rewrite:
    """Files that are read and written again together. gone: by path, positions of rows that go beside those that are
    deleted. thin: only the deletes of the file are written."""

    files: tuple[LiveFile, ...]
    gone: Mapping[str, BitMap]
    thin: bool = False

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class ChangeDue:
    """What is to be done to the files of a table, before its rewrites are. added, removed: as in FileChange."""

    added: tuple[NewFile, ...] = ()
    removed: frozenset[str] = frozenset()
    rewrites: tuple[Rewrite, ...] = ()

    def done(self, renewed: Iterable[NewFile]) -> FileChange:
        """renewed: what the rewrites have written."""
        return FileChange((*self.added, *renewed), self.removed)


def change_due(live: Sequence[LiveFile], added: Sequence[NewFile], gone: Mapping[str, BitMap]) -> ChangeDue:
    """Of a table that gets files and loses rows. Raises as `rewrites`."""
    if not added and not gone:
        return ChangeDue()
    due, empty = rewrites(live, gone)
    renewed = {file.path for rewrite in due if not rewrite.thin for file in rewrite.files}
    return ChangeDue(tuple(added), empty | renewed, tuple(due))


def rewrites(live: Sequence[LiveFile], gone: Mapping[str, BitMap]) -> tuple[list[Rewrite], frozenset[str]]:
    """(what to write again, the paths of files of which nothing is left). Raises Refused (run.clear_task) for positions
    of a file that is not among them: their rows would stay."""
    if strange := gone.keys() - {file.path for file in live}:
        raise Refused(
            f"Positions are of {min(strange)}, which the table does not have: they are of another snapshot.",
            where=min(strange),
            code="run.clear_task",
            remedy=repeat_from("filter"),
        )
    left = {file.path: file.rows - file.deleted - len(gone.get(file.path, ())) for file in live}
    empty = frozenset(path for path, rows in left.items() if rows <= 0)
    kept = [file for file in live if file.path not in empty]
    together = [group for group in _groups(kept) if len(group) > 1]
    merged = {file.path for group in together for file in group}
    done = [_rewrite(group, gone) for group in together]
    for file in kept:
        if file.path in merged:
            continue
        if file.rows - left[file.path] > DELETED_SHARE * file.rows:
            done.append(_rewrite([file], gone))
        elif file.path in gone:
            done.append(_rewrite([file], gone, thin=True))
    return done, empty


def _rewrite(group: Iterable[LiveFile], gone: Mapping[str, BitMap], *, thin: bool = False) -> Rewrite:
    files = tuple(group)
    return Rewrite(files, {file.path: gone[file.path] for file in files if file.path in gone}, thin)


def _groups(live: Iterable[LiveFile]) -> Iterator[list[LiveFile]]:
    """Files of about one size, where there are enough of them; a group is not larger than a file may be. Files that no
    other one can be put into are left alone: they would be as many again, at each run."""
    tiers: dict[int, list[LiveFile]] = defaultdict(list)
    for file in live:
        if file.groups <= FILE_GROUPS // 2 and file.size_bytes < FILE_BYTES // 2:
            tiers[(file.size_bytes // _SMALLEST_BYTES).bit_length() // 3].append(file)
    for tier in tiers.values():
        if len(tier) >= MERGED_FILES:
            group: list[LiveFile] = []
            for file in tier:
                group.append(file)
                bytes_, groups = sum(each.size_bytes for each in group), sum(each.groups for each in group)
                if bytes_ > FILE_BYTES or groups > FILE_GROUPS:
                    yield group[:-1]
                    group = [file]
            yield group


def rewritten(files: KeyedFiles, rewrite: Rewrite) -> list[NewFile]:
    """Writes what a rewrite says."""

    def gone(file: LiveFile) -> BitMap:
        return deleted_rows(files, file) | rewrite.gone.get(file.path, BitMap())

    if rewrite.thin:
        (file,) = rewrite.files
        return [write_deletes(files, file.path, gone(file))]
    parts = gathered(rows for file in rewrite.files for rows in live_rows(files, file, gone(file)))
    return [new for rows in parts for new in write_rows(files, in_order(rows, files.key))]
