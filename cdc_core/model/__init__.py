"""The values that cross the borders between rooms: frozen, and the same words as docs/architecture.md."""
