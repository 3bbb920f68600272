"""Isolated tables are read again where the pipeline says so (`tables.on_unreadable: resync`): from where the source is
by then, so that the place that could not be read is passed. A table that cannot be read there either is isolated again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cdc_core.config import Pipeline
from cdc_core.errors import LeaseHeld
from cdc_core.meta import Meta
from cdc_core.stage.isolated import clear, isolated
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)


def readmit(meta: Meta, store: ObjectStore, pipeline: Pipeline, source: str, holder: str) -> Mapping[str, str]:
    """The tables that the next extraction reads again, `database.table` -> since where it was isolated, and why.

    None while an extractor of the source is running: it would not notice.
    """
    found = isolated(store, source) if pipeline.tables.on_unreadable == "resync" else {}
    if not found:
        return {}
    try:
        with meta.holding(source, pipeline.pipeline, holder, pipeline.limits.lease_s):
            found = isolated(store, source)  # another process may have readmitted them, and extracted since
            for table in found:
                clear(store, source, table)
    except LeaseHeld:
        log.info("%s: isolated tables stay so while an extractor is running: %s", source, ", ".join(found))
        return {}
    return found
