"""A pipeline file drafted from a live source: what can be captured, from where on, and what is left out and why.

`config` parses the text before it is shown. Only the source is read; nothing is written.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from cdc_core import config
from cdc_core.errors import UsageError
from cdc_core.model.connection_reference import variable_of
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.mysql import connections
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server
from cdc_core.source.host.near_names import did_you_mean, question, table_names
from cdc_core.source.host.table_survey import FoundTable, find_tables, proven_empty, rows_before

TRIES = 3
"""Named in one warning."""

SERVER_IDS = range(700_000_000, 800_000_000)
"""The range of random server_ids: far from the small numbers that people choose by hand."""
REFERENCE = re.compile(r"^(env|airflow):[A-Za-z0-9_.-]+$")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of the command line. `directory`: contains the default stage and meta."""

    name: str
    source: str
    include: tuple[str, ...]
    directory: Path
    exclude: tuple[str, ...] = ()
    stage: str | None = None
    meta: str | None = None
    targets: tuple[str, ...] = ()
    lake: str | None = None
    warehouse: str | None = None
    start: str = "latest"


@dataclass(frozen=True, slots=True)
class Draft:
    """The file's text and its summary. captured: table and key; left_out: table and reason."""

    text: str
    captured: tuple[tuple[str, tuple[str, ...]], ...]
    left_out: tuple[tuple[str, str], ...]
    start: str
    server_id: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The source's objects that match the wishes: tables to capture, and those left out, with the reason.

    excluded: what may be logged (sequences too), so that the file must exclude it; never_logged: views.
    """

    captured: tuple[TableSchema, ...]
    excluded: tuple[tuple[str, str], ...]
    never_logged: tuple[tuple[str, str], ...]


def _catalogue(tables: Iterable[FoundTable]) -> Catalogue:
    captured, excluded, never_logged = [], [], []
    for table in tables:
        if table.kind == "view":
            never_logged.append((table.name, table.problem))
        elif table.schema is None or table.problem:
            excluded.append((table.name, table.problem))
        else:
            captured.append(table.schema)
    return Catalogue(tuple(captured), tuple(excluded), tuple(never_logged))


def draft(wishes: Wishes) -> Draft:
    """The pipeline of the wishes.

    Raises UsageError for impossible wishes, Refused (connection.setting, connection.grant), and what connecting raises.
    """
    _require_references(wishes)
    tables = config.CaptureRules(include=_patterns(wishes.include), exclude=_patterns(wishes.exclude))
    address = connections.resolve(wishes.source)
    with connections.connect(address, where=wishes.source) as connection:
        facts = source_server.facts(connection)
        server_id = free_server_id({facts.server_id, *(replica.server_id for replica in facts.replicas)})
        # The account would see no table, or the position in the file would be before statements without their rows.
        source = config.Source.model_construct(name=wishes.name, connection=wishes.source, server_id=server_id)
        for requirement in (source_server.require_log, source_server.require_grants, source_server.require_row_format):
            requirement(facts, source)
        found_tables = find_tables(connection, Capture(tables, lower_case=facts.lower_case).captures)
        catalogue = _catalogue(found_tables)
        kept = {schema.name for schema in catalogue.captured}
        end, empty = _empty_there(connection, [table for table in found_tables if table.name in kept])
        before = [table for table in found_tables if table.name in kept and table.name not in empty]
        start = ["    start: earliest"]
        shown = "the oldest log that the server has"
        if wishes.start == "latest":
            shown = str(end)
            names = ", ".join(quoted(name) for name in sorted(empty))
            proven = f", empty: [{names}]" if empty else ""
            start = [
                "    # The end of the log when this file was written. Only later changes are read.",
                f"    start: {{position: {{file: {quoted(end.file)}, offset: {end.offset}{proven}}}}}",
            ]
        present = [] if catalogue.captured else table_names(connection)
    warnings = []
    if not catalogue.captured:
        _require_no_slip(wishes.include, present)
        warnings.append("no table matches yet; those that appear later and match are captured")
    if before:
        runs = "the first `lockstep run` or " if wishes.targets or wishes.lake else ""
        warnings.append(f"{rows_before(before)}: {runs}`lockstep snapshot` copies them")
    text = _render(wishes, catalogue, server_id, start)
    config.parse(text, where=f"the draft of {wishes.name}")
    return Draft(
        text,
        tuple((schema.name, schema.key) for schema in catalogue.captured),
        (*catalogue.excluded, *catalogue.never_logged),
        shown,
        server_id,
        tuple(warnings),
    )


def _empty_there(connection: pymysql.Connection[Any], tables: Sequence[FoundTable]) -> tuple[Position, set[str]]:
    """The end of the log, and the tables that are proven to be empty there: nothing was logged while they were read.

    None on a server that is never quiet for this long: the first extract looks again.
    """
    for _ in range(TRIES):
        end = source_server.end_position(connection, 0)
        empty = {table.name for table in tables if proven_empty(connection, table.database, table.table)}
        if source_server.end_position(connection, 0) == end:
            return end, empty
    return end, set()


def _require_no_slip(include: tuple[str, ...], names: list[str]) -> None:
    """Refuses patterns that match nothing but resemble a table. Raises UsageError (usage.argument)."""
    for pattern in include:
        if near := question(did_you_mean(pattern, names)):
            raise UsageError(
                f"No table matches '{pattern}'. {near}.",
                where="--include",
                code="usage.argument",
                remedy="correct the pattern; for tables that do not exist yet, add it to the file afterwards",
            )


def _require_references(wishes: Wishes) -> None:
    """Runs first, so that a password given here goes no further. Raises UsageError (usage.argument)."""
    for option, value in (("--source", wishes.source), *(("--target", target) for target in wishes.targets)):
        if not REFERENCE.match(value):
            raise UsageError(
                f"{option} takes a reference to a URL, never the URL itself: env:VARIABLE or airflow:CONNECTION_ID.",
                where=option,
                code="usage.argument",
                remedy="export SHOP=mysql://user:password@host:3306, then give env:SHOP",
            )
    if (wishes.lake is None) != (wishes.warehouse is None) or (wishes.lake and not wishes.lake.startswith("env:")):
        raise UsageError(
            "A lake has a catalog and a warehouse.",
            where="--lake",
            code="usage.argument",
            remedy="export LAKE_CATALOG=postgresql+psycopg://user:password@host/lake, or sqlite:////folder/file, or "
            "the address of a REST catalog; then give --lake env:LAKE_CATALOG --warehouse s3://bucket/prefix, or "
            "file:///directory",
        )
    if wishes.start not in ("latest", "earliest"):
        raise UsageError(
            f"--start {wishes.start!r} is neither latest nor earliest.",
            where="--start",
            code="usage.argument",
            remedy="use one of the two; you can add positions, times and GTID sets to the file afterwards",
        )


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"'{pattern}' is not a regular expression: {error}.",
                where="--include, --exclude",
                code="usage.argument",
                remedy=r"write for example 'shop\..*', in single quotes for the shell",
            ) from None
    return patterns


def free_server_id(taken: set[int]) -> int:
    """A random number of SERVER_IDS that no known server has."""
    while (server_id := secrets.choice(SERVER_IDS)) in taken:
        pass
    return server_id


def quoted(text: str) -> str:
    """A YAML string in single quotes, where only the quote itself is special."""
    return "'" + text.replace("'", "''") + "'"


def _render(wishes: Wishes, catalogue: Catalogue, server_id: int, start: list[str]) -> str:
    home = wishes.directory.absolute() / ".lockstep" / wishes.name
    stage = _stage_uri(wishes.stage, home, wishes.directory)
    meta = wishes.meta or f"sqlite:///{home / 'meta.db'}"
    lines = [
        f"# Pipeline {wishes.name}, written by `lockstep init`. docs/configuration.md describes every key.",
        "# Next, run `lockstep check FILE`, then `lockstep extract FILE --until now`.",
        f"pipeline: {wishes.name}",
        "",
        "# When the DAG runs: a cron expression, in UTC. It also sets the windows that batches are divided into.",
        "schedule: '0 * * * *'",
        "",
        "sources:",
        f"  - name: {wishes.name}",
        "    # Where to find the URL. The URL contains the password, so it is kept out of this file.",
        f"    connection: {quoted(wishes.source)}",
        "    # Lockstep connects as a replica with this id, which no other replica may use. It was chosen at random",
        f"    # from {SERVER_IDS.start} to {SERVER_IDS.stop - 1}; no replica used it when this file was written.",
        f"    server_id: {server_id}",
        *start,
        "",
        "tables:",
        "  # Regular expressions that must match the whole `database.table`. They also capture matching tables that",
        "  # are created later.",
        *_list("include", wishes.include),
    ]
    lines += _left_out(wishes.exclude, catalogue)
    lines += [
        "  # Where a statement changed rows without logging them, such as TRUNCATE, or a table cannot be read at a",
        "  # place in the log, `lockstep run` copies the table again. `stop` would stop the source there.",
        "  on_unlogged_change: resync",
        "  on_unreadable: resync",
        "",
        "# `lockstep run` copies rows that tables had before they were captured; `lockstep snapshot` does only that.",
        "snapshot:",
        "  mode: initial",
        "",
    ]
    lines += ["# Tables that match now, with their keys:"] if catalogue.captured else ["# No tables match yet."]
    for schema in catalogue.captured:
        lines.append(f"#   {_comment(schema.name)} ({_comment(', '.join(schema.key)) or 'no key'})")
    lines += ["", "stage:", f"  uri: {quoted(stage)}", "", "meta:", f"  url: {quoted(meta)}"]
    lines += _targets(wishes, catalogue)
    return "\n".join(lines) + "\n"


def _stage_uri(asked: str | None, home: Path, directory: Path) -> str:
    if asked is None:
        return (home / "stage").as_uri()
    return asked if "://" in asked else (directory / asked).absolute().as_uri()


def _list(key: str, patterns: Iterable[str]) -> list[str]:
    return [f"  {key}:", *(f"    - {quoted(pattern)}" for pattern in patterns)]


def _comment(text: str) -> str:
    """Text that cannot end the comment that contains it."""
    return " ".join(text.split())


def _left_out(exclude: tuple[str, ...], catalogue: Catalogue) -> list[str]:
    lines = ["  exclude:" if exclude or catalogue.excluded else "  exclude: []"]
    lines += [f"    - {quoted(pattern)}" for pattern in exclude]
    for name, why in catalogue.excluded:
        lines += [f"    # {_comment(why)}", f"    - {quoted(re.escape(name))}"]
    lines += [f"    # {_comment(name)}: {_comment(why)}" for name, why in catalogue.never_logged]
    return lines


def _targets(wishes: Wishes, catalogue: Catalogue) -> list[str]:
    if not wishes.targets and wishes.lake is None:
        return [
            "",
            "# No targets: changes are only staged. To apply them, write `targets:` here, or use `lockstep init` with",
            "# --target.",
        ]
    lines = ["", "targets:"]
    for number, reference in enumerate(wishes.targets, 1):
        lines += [
            f"  - name: {wishes.name[:46]}{number if len(wishes.targets) > 1 else ''}",
            f"    connections: [{quoted(reference)}]",
            "    # Tables and columns that it lacks are created from the source's definitions when a run needs them.",
            "    # `lockstep target create --dry-run` shows the statements. To create them by hand, write stop.",
            "    on_missing_table: create",
            "    # If tables already have rows, from an earlier trial for instance, the first run stops until you say",
            "    # here what happens to these rows: replace or keep.",
            "    # existing: replace",
            "    tables:",
        ]
        for schema in catalogue.captured:
            if schema.key:
                lines += [
                    f"      # key ({_comment(', '.join(schema.key))})",
                    f"      {quoted(schema.name)}: {{on_new_column: add}}",
                ]
            else:
                lines += [
                    "      # No key: the target keeps as many copies of each row as the source has. If some columns",
                    "      # are unique, name them instead: {key: [...]}",
                    f"      {quoted(schema.name)}: {{no_key: rows, on_new_column: add}}",
                ]
        lines += ["      # All tables that appear later.", "      '*': {no_key: rows, on_new_column: add}"]
    return lines + _lake(wishes, catalogue)


def _lake(wishes: Wishes, catalogue: Catalogue) -> list[str]:
    if wishes.lake is None or wishes.warehouse is None:
        return []
    address = os.environ.get(variable_of(wishes.lake), "")
    kind = "rest" if address.startswith(("http://", "https://")) else "sql"
    lines = [
        "  - name: lake",
        "    kind: iceberg",
        f"    catalog: {{type: {kind}, uri: {quoted(wishes.lake)}, warehouse: {quoted(wishes.warehouse)}}}",
        f"    namespace: {wishes.name}",
        "    tables:",
    ]
    without = [schema for schema in catalogue.captured if not schema.key]
    if not without:
        return [*lines, "      '*': {}"]
    lines += [f"      {quoted(schema.name)}: {{}}" for schema in catalogue.captured if schema.key]
    lines += [
        f"      # {_comment(schema.name)} has no key: name columns that identify a row, {{key: [...]}}"
        for schema in without
    ]
    return lines
