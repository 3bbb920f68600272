"""What Lockstep keeps in a target beside the rows: fences, layouts, ledgers, gates, due indexes."""
