"""The horizon of a source: the position before which its staged history was purged, kept on the stage itself.

`horizons/<source>.json` is the commit point of a purge. What is before it no longer exists for any reader, whether
its files are already gone or not; the chain of manifests begins there. Readers that would need earlier history
refuse, and name the horizon: nothing is ever silently incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_core.errors import DataAtRisk, LockstepError, RetryLater
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.coverage import TableCoverage
from cdc_core.model.json_codec import Natural, TimeUs, UnknownVersion, dumped, parsed
from cdc_core.model.position import Position
from cdc_core.model.windows import from_us
from cdc_core.stage.layout import horizon_path
from cdc_core.stage.objects import ObjectStore, find
from cdc_core.stage.unreadable import other_version


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
    try:
        found = Horizon.from_bytes(data)
        if found.source != source:
            raise ValueError(f"it is that of {found.source!r}")
        return found
    except UnknownVersion as error:
        raise other_version(path, store.uri, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, LockstepError) as error:
        raise DataAtRisk(
            f"{path} is not a readable horizon: {type(error).__name__}: {error}.",
            where=store.uri,
            code="stage.damaged",
            remedy="restore the file from a backup of the stage, or use the version of Lockstep that wrote it",
        ) from None


def removed(what: str, *, where: str) -> RetryLater:
    """The error for a staged file that a purge removed while it was read."""
    return RetryLater(
        f"A staged file was removed while it was read: {what}",
        where=where,
        code="stage.removed",
        remedy="read again: after a purge, readers begin at the new horizon, or say what is missing",
    )
