"""The horizon of a source: the position before which its staged history was purged, kept on the stage itself.

`horizons/<source>.json` is the commit point of a purge. What is before it no longer exists for any reader, whether
its files are already gone or not; the chain of manifests begins there. Readers that would need earlier history
refuse, and name the horizon: nothing is ever silently incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc_core.errors import Refused, RetryLater
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.coverage import TableCoverage
from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.model.position import Position
from cdc_core.model.windows import from_us
from cdc_core.stage.layout import horizon_path
from cdc_core.stage.objects import ObjectStore, find
from cdc_core.stage.stage_records import reading_record


@dataclass(frozen=True, slots=True)
class Horizon:
    """position: where the oldest staged batch begins. until_us: end of the last purged window, µs UTC.
    last_batch: id of the last purged batch. targets: those that have everything purged. tables: purged changes by
    logical table. coverage: of source tables, from the purged manifests."""

    source: str
    position: Position
    until_us: TimeUs
    last_batch: str
    targets: tuple[str, ...]
    tables: Mapping[str, Natural]
    coverage: Mapping[str, TableCoverage] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.position} (windows up to {from_us(self.until_us).isoformat()})"

    def to_bytes(self) -> bytes:
        return dumped(self, version=MANIFEST_VERSION, indent=1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Horizon:
        return parsed(cls, raw, version=MANIFEST_VERSION)


def read(store: ObjectStore, source: str) -> Horizon | None:
    """None for a source without purged history. Raises DataAtRisk (stage.damaged) for any other file there,
    Refused (install.version)."""
    path = horizon_path(source)
    data = find(store, path)
    if data is None:
        return None
    with reading_record(path, store.uri, "horizon"):
        horizon = Horizon.from_bytes(data)
        if horizon.source != source:
            raise ValueError(f"it is that of {horizon.source!r}")
    return horizon


def require_unpurged(store: ObjectStore, batch_ids: Sequence[str]) -> None:
    """Raises Refused (plan.purged) when one of the batches is before its source's horizon."""
    first: dict[str, str] = {}
    for batch_id in batch_ids:
        source, _, place = batch_id.partition("/")
        first[source] = min(place, first.get(source, place))
    for source, place in first.items():
        horizon = read(store, source)
        if horizon is not None and place < horizon.position.name:
            raise Refused(
                f"The batch {source}/{place} has been purged: the staged history of {source!r} begins at {horizon}.",
                where=source,
                code="plan.purged",
                remedy=f"replay from the batch {source}/{horizon.position.name} on (--from; first_batches in Airflow); "
                "rows that have not changed since are then left out",
            )


def removed(what: str, *, where: str) -> RetryLater:
    """The error for a staged file that a purge removed while it was read."""
    return RetryLater(
        f"A staged file was removed while it was read: {what}",
        where=where,
        code="stage.removed",
        remedy="read again: after a purge, readers begin at the new horizon, or say what is missing",
    )
