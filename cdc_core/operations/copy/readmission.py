"""Isolated tables are read again where the pipeline says so (`tables.on_unreadable: resync`): from where the source is
by then, so that the place that could not be read is passed. A table that cannot be read there either is isolated again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cdc_core.errors import LeaseHeld
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.isolated import clear, isolated

log = logging.getLogger(__name__)


def readmit(
    opened: OpenPipeline,
    source: str,
) -> Mapping[str, str]:
    """The tables that the next extraction reads again, `database.table` -> since where it was isolated, and why.

    None while an extractor of the source is running: it would not notice.
    """
    found = isolated(opened.store, source) if opened.pipeline.tables.on_unreadable == "resync" else {}
    if not found:
        return {}
    try:
        with opened.meta.leases.held(source, opened.holder, opened.pipeline.limits.lease_s):
            found = isolated(opened.store, source)  # another process may have readmitted them, and extracted since
            for table in found:
                clear(opened.store, source, table)
    except LeaseHeld:
        log.info("%s: isolated tables stay so while an extractor is running: %s", source, ", ".join(found))
        return {}
    return found
