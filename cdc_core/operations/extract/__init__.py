"""Joins the packages: a source's log becomes staged batches and recorded positions."""

from cdc_core.operations.extract.drained import DrainResult, DrainStats
from cdc_core.operations.extract.extractor import Extractor
from cdc_core.operations.extract.stager import StagingTotals

__all__ = ["DrainResult", "DrainStats", "Extractor", "StagingTotals"]
