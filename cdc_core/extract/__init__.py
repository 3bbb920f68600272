"""Joins the packages: a source's log becomes staged batches and recorded positions."""

from cdc_core.extract.extractor import DrainResult, Effort, Extractor, default_holder
from cdc_core.extract.stager import Staged

__all__ = ["DrainResult", "Effort", "Extractor", "Staged", "default_holder"]
