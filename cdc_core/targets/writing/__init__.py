"""Rows into the tables of a target, guarded by version."""
