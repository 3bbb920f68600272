"""Limits every statement to the rows of one pipeline: the pipeline of its transaction.

Pipelines that share a meta database may use equal names for everything else: sources, targets, tables, batches. So
every table begins its key with `pipeline`, and no query has to name it. This module adds the pipeline to the conditions
of each SELECT, UPDATE and DELETE, in subqueries too, and to each row that is inserted. Tables that two pipelines share
are exempt (SHARED): their queries name the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Delete, FromClause, Select, Table, Update
from sqlalchemy.sql import util, visitors

OPTION = "lockstep_pipeline"
COLUMN = "pipeline"
SHARED = "lockstep_shared"
"""In the `info` of a table that is exempt."""


def pipeline_of(connection: Connection) -> str:
    """The pipeline that a transaction is for."""
    return str(connection.get_execution_options()[OPTION])


def own_pipeline(context: Any) -> str:
    """The value of `pipeline` in a row that is inserted: the default of the column."""
    return str(context.execution_options[OPTION])


def narrowed(connection: Connection, statement: Any, many: Any, one: Any, _options: Any) -> tuple[Any, Any, Any]:
    """A listener to `before_execute`."""
    pipeline = connection.get_execution_options().get(OPTION)
    if pipeline is None or not isinstance(statement, Select | Update | Delete):
        return statement, many, one

    def narrow(part: Any) -> None:
        for table in _tables(part):
            part._where_criteria += (table.c[COLUMN] == pipeline,)

    return visitors.cloned_traverse(statement, {}, dict.fromkeys(("select", "update", "delete"), narrow)), many, one


def _tables(part: Select[Any] | Update | Delete) -> Iterator[Table]:
    for each in _places(part):
        for table in util.find_tables(each, include_joins=True):
            if isinstance(table, Table) and COLUMN in table.c and SHARED not in table.info:
                yield table


def _places(part: Select[Any] | Update | Delete) -> Sequence[FromClause]:
    if not isinstance(part, Select):
        return [part.table]
    # `get_final_froms` without its compilation of the whole statement, which takes longer than SQLite's answer.
    bare = part.with_only_columns(maintain_column_froms=True)
    places: Sequence[FromClause] = bare._compile_state_factory(bare, None)._get_display_froms()  # type: ignore[arg-type]
    return places
