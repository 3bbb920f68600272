"""Numbered migrations of the meta database. Each is written out in full: meta_schema.py may change, it must not."""
