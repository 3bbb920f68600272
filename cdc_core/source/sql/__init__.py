"""Logged statements: which ones change captured tables, and which ones define them."""
