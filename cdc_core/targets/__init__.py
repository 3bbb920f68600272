"""Targets: which shard holds a row, what its server must offer, and the guarded bulk write."""
