"""The keys `tables` and `routes`: what is captured, and under which names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cdc_core.config.value_types import ColumnPattern, Condition, EnvironmentRef, Model, Pattern


class Columns(Model):
    """Columns that are excluded or masked. Patterns must match the whole `database.table.column`."""

    exclude: tuple[ColumnPattern, ...] = Field((), description="regular expressions: columns to leave out")
    mask: tuple[ColumnPattern, ...] = Field(
        (),
        description="regular expressions: columns whose values are replaced by the SHA-256 of salt and value, in hex; "
        "null stays null",
    )
    salt: EnvironmentRef | None = Field(
        None, description="env:VARIABLE that holds the salt for `mask`; a different salt gives different hashes"
    )

    @model_validator(mode="after")
    def _masks_are_salted(self) -> Columns:
        if self.mask and self.salt is None:
            raise ValueError("mask needs a salt: name a variable that holds one, as in salt: env:LOCKSTEP_SALT")
        return self


class RowFilter(Model):
    """Which rows of matching tables are captured. A row must meet all filters that match its table."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    where: Condition = Field(
        min_length=1, description="condition on the row's columns, such as status in ('paid', 'sent') and amount >= 10"
    )


class Processor(Model):
    """A function of your own that changes the columns of matching tables. Processors run first, in order."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    use: str = Field(min_length=1, description="name of an entry point in the group lockstep.processors")
    options: Mapping[str, Any] = Field(default_factory=dict, description="keyword arguments of the function")


class CaptureRules(Model):
    """Which source tables, rows and columns are captured. Patterns must match the whole `database.table`."""

    include: tuple[Pattern, ...] = Field(
        min_length=1, description="a table is captured if one of these regular expressions matches"
    )
    exclude: tuple[Pattern, ...] = Field((), description="a table is left out if one matches")
    processors: tuple[Processor, ...] = Field((), description="functions of your own that change columns, in order")
    rows: tuple[RowFilter, ...] = Field((), description="which rows are captured; default: all")
    columns: Columns = Field(default_factory=Columns, description="columns to leave out or mask")
    on_unlogged_change: Literal["stop", "record", "resync"] = Field(
        "stop",
        description="changes without row events (TRUNCATE, ADD COLUMN ... DEFAULT, DML in statement format, a table or "
        "column that is dropped and created again, foreign keys that the server does not log). stop: the source "
        "stops; record: note it and continue; resync: note it, and `lockstep run` copies the table "
        "again",
    )
    on_truncate: Literal["unlogged", "stage"] = Field(
        "unlogged",
        description="TRUNCATE TABLE, and a dropped table that is created again. unlogged: like any unlogged "
        "change; stage: stage it as a change (t); see on_truncate of target tables",
    )
    on_new: Literal["snapshot", "stream"] = Field(
        "snapshot",
        description="a table that appears later and matches. snapshot: copy its rows as snapshot.mode says, and"
        " follow it; stream: only follow it",
    )
    on_unreadable: Literal["stop", "isolate", "resync"] = Field(
        "stop",
        description="a table with an unknown definition, or an unsupported value or event. stop: the source "
        "stops; isolate: leave the table out and note it; resync: isolate it, and the next "
        "`lockstep run` readmits and copies it",
    )


class Route(Model):
    """Source tables that become one logical table. A source table feeds every logical table whose route matches. Source
    tables that feed one logical table must not share keys, unless `shared_keys` of the target is `newest`."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    to: str = Field(min_length=1, description="logical table; \\1 or \\g<name> insert groups of `match`")

    @property
    def only(self) -> str:
        """The one table that `match` matches, if it is not a pattern for several."""
        return re.sub(r"\\(\W)", r"\1", self.match)

    @model_validator(mode="after")
    def _groups_exist(self) -> Route:
        pattern = re.compile(self.match)
        for number, name in re.findall(r"\\(\d+)|\\g<(\w+)>", self.to):
            group = number or name
            known = int(group) <= pattern.groups if group.isdigit() else group in pattern.groupindex
            if not known or number.startswith("0"):
                raise ValueError(f"to {self.to!r}: match {self.match!r} has no group {group}")
        try:
            pattern.sub(self.to, "")
        except re.error as error:
            raise ValueError(f"to {self.to!r}: {error}; a backslash inserts a group, as in \\1") from None
        return self
