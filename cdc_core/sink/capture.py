"""The filter and the router: a pure function of a table's name, asked once per table and remembered.

It may assume patterns that compile and routes whose groups exist (the pipeline file was parsed). It must keep true
that the same name always gets the same answer, that no row is dropped or changed, and that a system schema is captured
only by a pattern that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from cdc_core.config import Route, Tables
from cdc_core.errors import InternalError, UsageError
from cdc_core.model.block import Block, TableRows
from cdc_core.model.staged import require_unreserved

SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

_LITERAL_SCHEMA = re.compile(r"\^?(\w+)(?:\\\.|\[\.\])")
"""The head of a pattern that names a schema letter by letter: `mysql\\.` or `mysql[.]`, not `.*` or `(a|b)`."""


def named_schema(pattern: str) -> str | None:
    """The schema that a pattern names letter by letter; None where it is itself a pattern."""
    match = _LITERAL_SCHEMA.match(pattern)
    return match[1].lower() if match else None


@dataclass(frozen=True)
class Capture:
    """The rules `tables` and `routes` of a pipeline.

    Routes that match a table each give it one logical name, in the order of the file, without repeats; a table that
    no route matches has its own name, `database.table`.
    """

    tables: Tables
    routes: tuple[Route, ...] = ()
    _decided: dict[tuple[str, str], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _checked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def captures(self, database: str, table: str) -> bool:
        return bool(self.route(database, table))

    def route(self, database: str, table: str) -> tuple[str, ...]:
        """Logical names of a captured table; () for one that is not captured. Raises UsageError (sink.empty_route)."""
        key = (database, table)
        decided = self._decided.get(key)
        if decided is None:
            decided = self._decided[key] = self._decide(database, table)
        return decided

    def _decide(self, database: str, table: str) -> tuple[str, ...]:
        name = f"{database}.{table}"
        include = self.tables.include
        if database.lower() in SYSTEM_SCHEMAS:
            include = tuple(pattern for pattern in include if named_schema(pattern) == database.lower())
        if not any(re.fullmatch(pattern, name) for pattern in include):
            return ()
        if any(re.fullmatch(pattern, name) for pattern in self.tables.exclude):
            return ()
        logical = dict.fromkeys(
            _expand(route, match, name) for route in self.routes if (match := re.fullmatch(route.match, name))
        )
        return tuple(logical) or (name,)

    def apply(self, block: Block) -> Block:
        """The block with each table's rows under its logical names: once per route.

        Raises Refused (schema.reserved_column); InternalError (sink.not_captured) for a table that is not captured,
        whose rows the source has no business to hand on.
        """
        tables: list[TableRows] = []
        for part in block.tables:
            if part.schema.id not in self._checked:
                require_unreserved(part.schema)
                self._checked.add(part.schema.id)
            names = self.route(part.schema.database, part.schema.table)
            if not names:
                raise InternalError(
                    f"The source handed on rows of {part.schema.name}, which is not captured.",
                    where=f"{block.begin}",
                    code="sink.not_captured",
                    remedy="report this as a defect; nothing of this block was staged",
                )
            tables += [part if name == part.logical else replace(part, logical=name) for name in names]
        return replace(block, tables=tuple(tables))


def _expand(route: Route, match: re.Match[str], name: str) -> str:
    logical = match.expand(route.to)
    if not logical.strip():
        raise UsageError(
            f"The route {route.match!r} gives {name} an empty logical name.",
            where="routes",
            code="sink.empty_route",
            remedy="make the group that `to` takes match at least one character",
        )
    return logical
