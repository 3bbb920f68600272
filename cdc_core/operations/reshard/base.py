"""Whether everything is staged that a new target needs: for each of its tables every row, from a copy or from the
table's beginning, and every change since.

A target that was filled otherwise, by a dump for instance, may have rows that were never staged; a target that is
filled from the stage would lack them, and no error would tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.config import Pipeline, Target
from cdc_core.errors import Refused
from cdc_core.model.batch import Manifest
from cdc_core.stage.manifest import chain
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_coverage import missing_of, purged_of


def require_base(store: ObjectStore, pipeline: Pipeline, target: Target) -> tuple[str, ...]:
    """The logical tables that are staged and that the target takes. Raises Refused (stage.partial), and what reading
    the chain raises."""
    manifests = [manifest for source in pipeline.sources for manifest in chain(store, source.name)]
    tables = _tables(manifests, target)
    lacking = missing_of(store, manifests, tables)
    purged = purged_of(store, manifests, tables)
    if lacking or purged:
        why = [line for lines in lacking.values() for line in lines] + list(purged.values())
        raise Refused(
            f"The stage does not have everything that a new target needs: {'; '.join(why)}.",
            where=f"targets.{target.name}",
            code="stage.partial",
            remedy=f"copy the tables (`lockstep snapshot {pipeline.pipeline} TABLE...`), then begin again",
        )
    if not tables:
        raise Refused(
            "The stage has no row of the target's tables.",
            where=f"targets.{target.name}",
            code="stage.partial",
            remedy=f"run the pipeline first (`lockstep run {pipeline.pipeline}`)",
        )
    return tables


def _tables(manifests: Sequence[Manifest], target: Target) -> tuple[str, ...]:
    staged = {part.table for manifest in manifests for part in manifest.parts}
    return tuple(sorted(name for name in staged if target.table(name) is not None))
