"""Which tables are captured, and what happens to their rows: decided once per table name, and cached.

It may assume patterns that compile and routes whose groups exist (the pipeline file was parsed). It must keep true
that the same name always gets the same answer, that rows are dropped or changed only by a rule of the pipeline that
matches their table, that each row dropped is counted, that a system schema is captured only by a pattern that names it,
and our own tables of a target never. The rules work in this order: processors, conditions on rows, columns left out or
masked; then rows are routed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from cdc_core.config import CaptureRules, Processor, Route, RowFilter
from cdc_core.errors import UsageError, defect
from cdc_core.model.block import Block, TableRows
from cdc_core.model.condition import parse
from cdc_core.model.paths import LONGEST_NAME
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import require_unreserved, staged_schema
from cdc_core.source.capture.column_rules import Masking
from cdc_core.source.capture.processors import Process, function_of
from cdc_core.source.capture.row_filter import Filter

FILTERED = "row outside tables.rows"
Rule = TypeVar("Rule", Processor, RowFilter)


class RowRule(Protocol):
    """A rule that is applied to the rows of a table."""

    def apply(self, part: TableRows) -> TableRows: ...


SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
_NO_TABLE = "(?!)"
OWN_PREFIX = "_lockstep_"
"""Tables that Lockstep keeps in the databases of a target, which may be another pipeline's source."""

_LITERAL_SCHEMA = re.compile(r"\^?(\w+)(?:\\\.|\[\.\])")
"""The head of a pattern that names a schema letter by letter: `mysql\\.` or `mysql[.]`, not `.*` or `(a|b)`."""


def named_schema(pattern: str) -> str | None:
    """The schema that a pattern names letter by letter; None where it is itself a pattern."""
    match = _LITERAL_SCHEMA.match(pattern)
    return match[1].lower() if match else None


def _may_name(pattern: str, database: str) -> bool:
    """Whether a pattern of tables may match one of a database, in any letter case."""
    head, dot, _ = pattern.partition(r"\.")
    if not dot or re.search(r"\||\(\?|\\\.[?*{]", pattern):  # its first dot need not end the database's name
        return True
    try:
        return re.fullmatch(head, database, re.IGNORECASE) is not None
    except re.error:  # the dot is inside of something
        return True


@dataclass(frozen=True)
class Capture:
    """The rules `tables` and `routes` of a pipeline.

    Routes that match a table each give it one logical name, in the order of the file, without repeats; a table that
    no route matches has its own name, `database.table`.
    """

    tables: CaptureRules
    routes: tuple[Route, ...] = ()
    lower_case: bool = False
    """Whether the server compares names of tables in lower case: so do the patterns."""
    _decided: dict[tuple[str, str], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _steps: dict[str, tuple[RowRule, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """For each definition, by its id: the steps for its rows."""

    @property
    def rules(self) -> str:
        """The rules that decide which rows are staged, and how, as JSON."""
        rules = {
            "include": self.tables.include,
            "exclude": self.tables.exclude,
            "lower_case": self.lower_case,
            "tables": self.tables.model_dump(mode="json", include={"rows", "columns", "processors"}),
            "routes": [route.model_dump(mode="json") for route in self.routes],
        }
        return json.dumps(rules, ensure_ascii=False)

    @classmethod
    def by_rules(cls, text: str) -> Capture | None:
        """One whose `rules` these are; None for any other text, such as ''."""
        try:
            rules = json.loads(text)
            patterns = {"include": rules["include"], "exclude": rules["exclude"]}
            return cls(
                CaptureRules.model_validate({**rules["tables"], **patterns}),
                tuple(map(Route.model_validate, rules["routes"])),
                lower_case=rules["lower_case"],
            )
        except (ValueError, KeyError, TypeError):
            return None

    @classmethod
    def by_names(cls, text: str) -> Capture:
        """Captures the same tables as one whose `rules` these are, whatever else they say; no table for any other
        text, such as ''."""
        try:
            rules = json.loads(text)
            patterns = CaptureRules(include=rules["include"], exclude=rules["exclude"])
            return cls(patterns, lower_case=rules["lower_case"])
        except (ValueError, KeyError, TypeError):
            return cls(CaptureRules(include=(_NO_TABLE,)))

    def as_in(self, text: str) -> Capture:
        """The rules as the server compares names that the Capture of these `rules` was for: where it is not asked."""
        return replace(self, lower_case=Capture.by_names(text).lower_case)

    def captures(self, database: str, table: str) -> bool:
        return bool(self.route(database, table))

    def may_be_in(self, database: str) -> bool:
        """Whether a captured table may be in a database: no where every pattern names others."""
        return any(_may_name(pattern, database) for pattern in self.tables.include)

    def route(self, database: str, table: str) -> tuple[str, ...]:
        """Logical names of a captured table; () for one that is not captured. Raises UsageError (config.invalid)."""
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
        if table.lower().startswith(OWN_PREFIX) or not any(self.matches(pattern, name) for pattern in include):
            return ()
        if any(self.matches(pattern, name) for pattern in self.tables.exclude):
            return ()
        if "." in database:
            raise UsageError(
                f"The database {database!r} has a dot in its name, so {name} could also be a table of another "
                "database.",
                where=f"{name}, captured by tables.include",
                code="config.invalid",
                remedy="exclude it (tables.exclude), or move its tables to a database without a dot (RENAME TABLE)",
            )
        logical = dict.fromkeys(
            _expand(route, match, name) for route in self.routes if (match := self.matches(route.match, name))
        )
        return tuple(logical) or (name,)

    def matches(self, pattern: str, name: str) -> re.Match[str] | None:
        """Whether a pattern of the pipeline matches the whole of a table's name."""
        return re.fullmatch(pattern, name, re.IGNORECASE if self.lower_case else 0)

    def shape(self, schema: TableSchema) -> TableSchema:
        """The definition of this table's rows after all rules. Raises what `apply` does."""
        nothing = pa.RecordBatch.from_pylist([], staged_schema(schema))
        return self._shaped(TableRows(schema, schema.name, nothing, np.zeros(0, np.int32))).schema

    def rules_of(self, schema: TableSchema) -> str:
        """A digest of the rules for the rows of this table: rows that were read under others are other rows."""
        columns = [column.name for column in schema.columns]
        rules = {
            "processors": [rule.model_dump(mode="json") for rule in self._matching(self.tables.processors, schema)],
            "rows": [rule.where for rule in self._matching(self.tables.rows, schema)],
            "excluded": [name for name in columns if self._masking.excludes(schema, name)],
            "masked": [name for name in columns if self._masking.masks(schema, name)],
            "logical": self.route(schema.database, schema.table),
        }
        return hashlib.sha256(json.dumps(rules, ensure_ascii=False).encode()).hexdigest()

    def masks(self, schema: TableSchema, column: str) -> bool:
        """Whether the value of this column is replaced by a hash."""
        return self._masking.masks(schema, column)

    def excludes(self, schema: TableSchema, column: str) -> bool:
        """Whether nothing of this column is staged."""
        return self._masking.excludes(schema, column)

    def processes(self, schema: TableSchema) -> bool:
        """Whether a function of the user's makes the columns of this table."""
        return any(self.matches(rule.match, schema.name) for rule in self.tables.processors)

    def apply(self, block: Block) -> Block:
        """The block with the captured rows of each table, under its logical names: once per route.

        Raises Refused (source.unsupported_table, sink.*), UsageError (sink.*), DataAtRisk (sink.unknown_value);
        InternalError (internal.defect) for a table that is not captured, whose rows the source must not emit.
        """
        tables: list[TableRows] = []
        rows, dropped = block.entries.rows, 0
        for part in block.tables:
            routed = self.routed(part)
            kept = routed[0].entry
            less = len(part.entry) - len(kept)
            if less:
                dropped += less
                count = len(rows)
                rows = rows - np.bincount(part.entry, minlength=count) + np.bincount(kept, minlength=count)
            tables += routed
        left_out = {**block.left_out, FILTERED: dropped} if dropped else block.left_out
        return replace(block, tables=tuple(tables), entries=replace(block.entries, rows=rows), left_out=left_out)

    def routed(self, part: TableRows) -> list[TableRows]:
        """The captured rows of a table, under each of its logical names. Raises what `apply` does."""
        names = self.route(part.schema.database, part.schema.table)
        if not names:
            raise defect(
                f"The source passed on rows of {part.schema.name}, which is not captured.",
                where=part.schema.name,
                first="none of them was staged",
            )
        shaped = self._shaped(part)
        return [shaped if name == shaped.logical else replace(shaped, logical=name) for name in names]

    def _shaped(self, part: TableRows) -> TableRows:
        before = part.schema
        steps = self._steps.get(before.id)
        if steps is None:
            require_unreserved(before)
            steps = self._steps_of(before)
        for step in steps:
            part = step.apply(part)
        if before.id not in self._steps:
            require_unreserved(part.schema)
            self._steps[before.id] = steps
        return part

    @cached_property
    def _masking(self) -> Masking:
        return Masking(self.tables.columns)

    def _matching(self, rules: Sequence[Rule], schema: TableSchema) -> list[Rule]:
        return [rule for rule in rules if self.matches(rule.match, schema.name)]

    def _steps_of(self, schema: TableSchema) -> tuple[RowRule, ...]:
        processors = self._matching(self.tables.processors, schema)
        steps: list[RowRule] = [Process(rule, function_of(rule.use)) for rule in processors]
        conditions = [rule.where for rule in self._matching(self.tables.rows, schema)]
        if conditions:
            steps.append(Filter(tuple(parse(text) for text in conditions), " and ".join(conditions)))
        columns = self.tables.columns
        if columns.exclude or columns.mask:
            steps.append(self._masking)
        return tuple(steps)


def _bad_route(what: str, remedy: str) -> UsageError:
    return UsageError(what, where="routes", code="config.invalid", remedy=remedy)


def _expand(route: Route, match: re.Match[str], name: str) -> str:
    logical = match.expand(route.to)
    if not logical.strip():
        raise _bad_route(
            f"The route {route.match!r} gives {name} an empty logical name.",
            "let the group that `to` takes match at least one character",
        )
    if len(logical) > LONGEST_NAME:
        raise _bad_route(
            f"The route {route.match!r} gives {name} a logical name of {len(logical)} characters, "
            f"{logical[:40]!r}...; at most {LONGEST_NAME} are allowed.",
            "write a shorter `to`",
        )
    return logical
