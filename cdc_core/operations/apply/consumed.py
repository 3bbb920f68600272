"""Which of a source's batches every target has committed."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest


def committed(meta: Meta, pipeline: Pipeline, batches: Sequence[Manifest]) -> tuple[list[Manifest], str]:
    """The first of them that every target has committed, and why the next one stays ("" if none is left).

    batches: of one source, in stream order.
    """
    found, why = list(batches), ""
    for target in pipeline.targets if batches else ():
        lacking = meta.plans.first_lacking(batches[0].source, target.name)
        for number, batch in enumerate(found):
            if batch.batch_id == lacking:
                found, why = found[:number], f"{target.name} has not committed {lacking}"
                break
    recorded = meta.positions.checkpoint(batches[0].source) if found else None
    for number, batch in enumerate(found):
        if recorded is None or recorded.position < batch.end.position:
            return found[:number], f"the meta database has not recorded {batch.batch_id}"
    return found, why
