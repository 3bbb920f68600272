"""Definitions of the source's tables, now and at a place of the log."""
