"""Whether a staged file is missing because it was removed on purpose: then the reader begins again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from cdc_core.errors import FilesLost
from cdc_core.model.position import Position
from cdc_core.stage import compactions
from cdc_core.stage import horizon as horizons
from cdc_core.stage.horizon import removed
from cdc_core.stage.layout import parse_compacted, parse_part
from cdc_core.stage.manifest import chain
from cdc_core.stage.objects import ObjectStore


@contextmanager
def unless_removed(store: ObjectStore, begins: Mapping[str, Position], paths: Iterable[str]) -> Iterator[None]:
    """Around reads of staged files. begins: by source, where the first batch begins that is read. paths: of the files.

    Raises RetryLater (stage.removed) in place of DataAtRisk (stage.damaged) if meanwhile a purge has moved a horizon
    past these batches, or if one of the files is one whose rows are in another file: compacted, or without rows that
    were erased.
    """
    try:
        yield
    except FilesLost as error:
        listed = set(paths)
        if _is_purged(store, begins) or _is_compacted(store, begins, listed) or _is_erased(store, begins, listed):
            raise removed(error.what, where=error.where) from None
        raise


def _is_purged(store: ObjectStore, begins: Mapping[str, Position]) -> bool:
    horizons_now = {source: horizons.read(store, source) for source in begins}
    return any(horizon is not None and begins[source] < horizon.position for source, horizon in horizons_now.items())


def _is_compacted(store: ObjectStore, sources: Iterable[str], paths: Iterable[str]) -> bool:
    ranges = compactions.read(store, sources)
    for path in paths:
        part, made = parse_part(path), parse_compacted(path)
        place = (part.source, part.seq) if part else (made.source, made.begin_seq) if made else None
        compaction = None if place is None else ranges.at(*place)
        if compaction is not None and all(part.path != path for part in compaction.parts):
            return True
    return False


def _is_erased(store: ObjectStore, sources: Iterable[str], paths: Collection[str]) -> bool:
    manifests = (manifest for source in sources for manifest in chain(store, source))
    return any(erased.path in paths for manifest in manifests for erased in manifest.erased)
