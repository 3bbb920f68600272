"""Which tables, rows and columns of a source are captured, and which logical table they belong to."""

from cdc_core.source.capture.captured import SYSTEM_SCHEMAS, Capture

__all__ = ["SYSTEM_SCHEMAS", "Capture"]
