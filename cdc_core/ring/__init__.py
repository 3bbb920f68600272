"""The bounded store between source and stage. cdc_core/ring/ring.py holds the rules."""

from cdc_core.ring.boundary import AckPoint, RingStats
from cdc_core.ring.ring import MEMORY_UNIT, Ring, RingClosed

__all__ = ["MEMORY_UNIT", "AckPoint", "Ring", "RingClosed", "RingStats"]
