"""What belongs to the process: its folders, its end, its extras, and what may fail beside its work."""
