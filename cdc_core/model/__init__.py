"""The values that cross the borders between packages: frozen, and the same words as docs/architecture.md."""
