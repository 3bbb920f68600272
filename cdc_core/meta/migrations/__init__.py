"""Numbered migrations of the meta database. Each is written out in full: it must not change when tables.py does."""
