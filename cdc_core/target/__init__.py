"""Targets: where rows go. Which shard holds a row, what its server must offer, and the guarded bulk write."""
