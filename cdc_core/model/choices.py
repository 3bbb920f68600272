"""A choice among the names that a pipeline file has."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.errors import UsageError


def choose(names: Sequence[str], wanted: Sequence[str] | None, what: str, where: str) -> list[str]:
    """The wanted names, or all. what: they are, in one word; where: they were given. Raises UsageError
    (usage.argument)."""
    for name in wanted or ():
        if name not in names:
            raise UsageError(
                f"The pipeline has no {what} {name!r}.",
                where=where,
                code="usage.argument",
                remedy=f"give one of: {', '.join(names) or '(it has none)'}",
            )
    return list(dict.fromkeys(wanted)) if wanted else list(names)
