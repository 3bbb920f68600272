"""Definitions of target tables: made, compared, altered."""
