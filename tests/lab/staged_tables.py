"""Staged changes, states and exports of a table, as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_core.model.batch import Manifest
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stage_reader import (
    StateOptions,
    change_batches,
    changes_columns,
    state_batches,
    state_columns,
    write_file,
)


def changes(store: ObjectStore, manifests: Sequence[Manifest], table: str) -> pa.Table:
    schema = changes_columns(store, manifests, table)
    return pa.Table.from_batches(change_batches(store, manifests, table), schema)


def table_state(
    store: ObjectStore, manifests: Sequence[Manifest], table: str, key: Sequence[str] | None = None, **options: Any
) -> pa.Table:
    how = StateOptions(key, **options)
    return pa.Table.from_batches(state_batches(store, manifests, table, how), state_columns(manifests, table, how))


def export(store: ObjectStore, manifests: Sequence[Manifest], table: str, path: Path, **options: Any) -> int:
    """The rows written."""
    how = StateOptions(**options)
    batches = state_batches(store, manifests, table, how)
    return write_file(state_columns(manifests, table, how), batches, path)
