"""What a target has, and where: shards, facts, rows read back."""
