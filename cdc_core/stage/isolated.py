"""Source tables that are left out because they could not be read: those of the newest manifest, less the cleared ones.

The state is in the manifests, so that it is exactly as durable as the positions. Keeps true: a table stays isolated
over restarts until an operator has cleared it, after a re-sync, at a place in the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_core.errors import UsageError
from cdc_core.stage.layout import cleared_path
from cdc_core.stage.manifest import newest
from cdc_core.stage.objects import ObjectStore


def isolated(store: ObjectStore, source: str) -> Mapping[str, str]:
    """The isolated tables of a source: `database.table` -> since where, and why."""
    manifest = newest(store, source)
    if manifest is None:
        return {}
    place = manifest.end.position
    return {
        table: why
        for table, why in sorted(manifest.isolated.items())
        if store.stat(cleared_path(source, place, table)) is None
    }


def clear(store: ObjectStore, source: str, table: str) -> None:
    """Captures the table again, from the source's durable position on; a second call, before anything is read from
    there, does nothing. The source's extractor must not be running.

    Raises UsageError (usage.unknown_name).
    """
    manifest = newest(store, source)
    if manifest is None or table not in manifest.isolated:
        raise UsageError(
            f"The table {table} of source {source} is not isolated.",
            where=store.uri,
            code="usage.unknown_name",
            remedy="name one that `lockstep stage isolated` lists",
        )
    store.put_if_absent(cleared_path(source, manifest.end.position, table), b"")


def notes(tables: Mapping[str, str]) -> tuple[str, ...]:
    """The note about each isolated table in a manifest, which `lockstep status` shows."""
    return tuple(f"table {table} is isolated, needs re-sync: {why}" for table, why in sorted(tables.items()))
