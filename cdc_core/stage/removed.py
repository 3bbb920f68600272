"""Whether a staged file is missing because it was removed on purpose: then the reader begins again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from cdc_core.errors import FilesLost
from cdc_core.model.position import Position
from cdc_core.stage import compactions
from cdc_core.stage import horizon as horizons
from cdc_core.stage.horizon import removed
from cdc_core.stage.layout import parse_part
from cdc_core.stage.objects import ObjectStore


@contextmanager
def unless_removed(store: ObjectStore, begins: Mapping[str, Position], paths: Iterable[str]) -> Iterator[None]:
    """Around reads of staged files. begins: by source, where the first batch begins that is read. paths: of the files.

    Raises RetryLater (stage.removed) in place of DataAtRisk (stage.damaged) if meanwhile a purge has moved a horizon
    past these batches, or if one of the files is a part whose rows are in a compacted file.
    """
    try:
        yield
    except FilesLost as error:
        for source, begin in begins.items():
            horizon = horizons.read(store, source)
            if horizon is not None and begin < horizon.position:
                raise removed(error.what, where=error.where) from None
        ranges = compactions.read(store, begins)
        for path in paths:
            name = parse_part(path)
            found = None if name is None else ranges.at(name.source, name.seq)
            if found is not None and all(part.path != path for part in found.parts):
                raise removed(error.what, where=error.where) from None
        raise
