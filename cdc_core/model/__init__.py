"""The values that pass between packages: frozen, and named as in docs/architecture.md."""
