"""A pipeline while an operation works on it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from cdc_core.config import IcebergTarget, Pipeline
from cdc_core.meta import Meta
from cdc_core.process.extras import require
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from cdc_core.meta import TableCopy
    from cdc_core.operations.extract.drained import DrainResult

log = logging.getLogger(__name__)


class Progress:
    """Where an operation says how far it is. This one only logs; the command line shows it on a line.

    The context managers yield a function that is called as often as there is something new, from any thread.
    """

    def note(self, text: str) -> None:
        """A line for people."""
        log.info("%s", text)

    def step(self, name: str) -> None:
        """The next task of a run begins: `merge`, `shards: write`; "" after the last one."""

    def extracting(self, sources: Sequence[str]) -> AbstractContextManager[Callable[[str, DrainResult], None]]:
        """Receives a source and how far it is."""
        return nullcontext(lambda source, result: None)

    def copying(self, rows: Mapping[str, int | None]) -> AbstractContextManager[Callable[[TableCopy], None]]:
        """rows: of the tables, as far as they are known."""
        return nullcontext(lambda copy: None)

    def comparing(self) -> AbstractContextManager[Callable[[str, str, int], None]]:
        """Receives a table, the side that is being read, and the rows of it so far."""
        return nullcontext(lambda table, side, rows: None)


LOG_ONLY = Progress()


def default_holder() -> str:
    """`host:pid`: the holder of a lease, for the message to another that wants it."""
    return f"{socket.gethostname()}:{os.getpid()}"


class OpenCatalogs:
    """The catalogs of the lakes that an operation asks for, each opened once."""

    def __init__(self) -> None:
        self._open: dict[str, Catalog] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.clear()
        self._closing.close()

    def of(self, target: IcebergTarget) -> Catalog:
        """Raises as open_catalog; UsageError (install.missing)."""
        if target.name not in self._open:
            require("lake", by=f"target {target.name}")
            from cdc_core.lake.catalogs import open_catalog

            self._open[target.name] = self._closing.enter_context(open_catalog(target))
        return self._open[target.name]


@dataclass(frozen=True, slots=True)
class OpenPipeline:
    """What every operation is given. holder: of every lease that the operation takes, as others read it."""

    pipeline: Pipeline
    meta: Meta
    store: ObjectStore
    progress: Progress = LOG_ONLY
    holder: str = field(default_factory=default_holder)
    catalogs: OpenCatalogs = field(default_factory=OpenCatalogs)

    @property
    def name(self) -> str:
        return self.pipeline.pipeline


@contextmanager
def open_pipeline(
    pipeline: Pipeline,
    progress: Progress = LOG_ONLY,
    *,
    holder: str | None = None,
    upgrade: bool = False,
) -> Iterator[OpenPipeline]:
    """Opens the pipeline's meta database and its stage. upgrade: as in Meta.open. Raises what opening them raises."""
    store = open_stage(pipeline.stage)
    with Meta.open(pipeline.meta.url, pipeline.pipeline, upgrade=upgrade) as meta, OpenCatalogs() as catalogs:
        yield OpenPipeline(pipeline, meta, store, progress, holder or default_holder(), catalogs)
