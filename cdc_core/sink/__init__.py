"""What of a source is captured, and which logical table it belongs to."""

from cdc_core.sink.capture import SYSTEM_SCHEMAS, Capture

__all__ = ["SYSTEM_SCHEMAS", "Capture"]
