"""Joins the packages: a source's log becomes staged batches and recorded positions.

`extractor` has a thread that reads blocks into the ring; the caller's thread takes them out, and `stager` makes batches
of them. `side_by_side` does this for several sources at once, `hosts` finds the server of a source that answers.
"""

from cdc_core.operations.extract.drained import DrainResult, DrainStats, StagingTotals
from cdc_core.operations.extract.extractor import Extractor

__all__ = ["DrainResult", "DrainStats", "Extractor", "StagingTotals"]
