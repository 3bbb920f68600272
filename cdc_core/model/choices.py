"""A choice among the names that a pipeline file has."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from cdc_core.errors import UsageError


def choose(names: Sequence[str], wanted: Sequence[str] | None, what: str, where: str) -> list[str]:
    """The wanted names, in the order of `names`, or all. what: they are, in one word; where: they were given. Raises
    UsageError (usage.unknown_name)."""
    for name in wanted or ():
        if name not in names:
            near = get_close_matches(name, names, 1)
            raise UsageError(
                f"The pipeline has no {what} {name!r}.",
                where=where,
                code="usage.unknown_name",
                remedy=(f"did you mean {near[0]!r}? " if near else "")
                + f"choose one of: {', '.join(names) or '(it has none)'}",
            )
    return [name for name in names if not wanted or name in wanted]
