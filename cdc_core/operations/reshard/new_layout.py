"""A target with another number of shards, made from a target that exists: the same tables by the same key and function,
in databases and tables of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from cdc_core.config import NAME, Target, TargetTable
from cdc_core.errors import Refused, UsageError
from cdc_core.mysql.connections import resolve
from cdc_core.targets.reading.sharding import shard_tables


@dataclass(frozen=True, slots=True)
class NewLayout:
    """How many databases there will be, and tables of each logical table in each of them.

    database: template of the databases' names; None: the former names with the layout behind them. connections: the
    servers; (): the former ones.
    """

    databases: int
    tables: int
    database: str | None = None
    connections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.databases}x{self.tables}"

    @property
    def shards(self) -> int:
        return self.databases * self.tables


def parse_layout(text: str) -> tuple[int, int]:
    """Databases and tables of `16x16`. Raises UsageError (reshard.layout)."""
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a layout.",
            where="--to",
            code="usage.argument",
            remedy="give the numbers of databases and of tables in each, as in 16x16",
        )
    return int(match[1]), int(match[2])


def new_name(name: str, new: NewLayout, suffix: str = "") -> str:
    """Of a target, or a pipeline, made from another. Raises UsageError (reshard.layout)."""
    made = f"{name}_{new.name}{suffix}"
    if NAME.match(made):
        return made
    raise UsageError(
        f"The name {made!r} is longer than 48 characters.",
        where="--to",
        code="usage.argument",
        remedy="give the new target a shorter name with --name",
    )


def new_target(old: Target, new: NewLayout, name: str) -> dict[str, Any]:
    """The target in the new layout, as the plain values of a pipeline file. Raises Refused (reshard.layout).

    Its tables are created, and nothing feeds it before it is filled (fill.py).
    """
    _require_sharded(old)
    connections = _connections(old, new)
    document = old.model_dump(mode="json", exclude_unset=True) | {
        "name": name,
        "connections": list(connections),
        "on_missing_table": "create",
        "replay_only": True,
        "tables": {logical: new_rule(rule, new) for logical, rule in old.tables.items()},
    }
    order = ("name", "connections", "on_missing_table", "replay_only", "tables")
    return {key: document[key] for key in (*order, *(set(document) - set(order)))}


def new_rule(rule: TargetTable, new: NewLayout, words: Mapping[str, str] | None = None) -> dict[str, Any]:
    """words: what templates say of the logical table, written out; None leaves them as they are."""
    document = rule.model_dump(mode="json", exclude_unset=True)
    database, table = new.database or f"{rule.database}_{new.name}", rule.table
    if rule.sharding is not None:
        database = _with_number(database, "d", new.databases)
        table = _with_number(table, "t", new.tables)
        sharding = document["sharding"] | {"databases": new.databases, "tables": new.tables}
        document["sharding"] = sharding
    if words is not None:
        database, table = _written_out(database, words), _written_out(table, words)
    return document | {"database": database, "table": table}


def words_of(logical: str) -> dict[str, str]:
    """The words of templates that say which logical table it is."""
    database, dot, table = logical.partition(".")
    return {"logical": logical, "table": table if dot else logical} | ({"database": database} if dot else {})


def require_apart(
    target: Target,
    logicals: Iterable[str],
    others: Iterable[tuple[Target, Iterable[str]]],
    environ: Mapping[str, str] | None = None,
) -> None:
    """No table of a new target is one of another's. others: targets and their logical tables.

    Raises Refused (reshard.layout), and what resolving servers raises.
    """
    taken = {place: other.name for other, tables in others for place in _places(other, tables, environ)}
    for place in _places(target, logicals, environ):
        if place in taken:
            raise Refused(
                f"The table {place[2]} of the new target is a table of the target {taken[place]!r}.",
                where=f"targets.{target.name}",
                code="reshard.layout",
                remedy="give other names to the new databases with --database, as in --database 'shop16_{d:02d}', or "
                "other servers with --connection",
            )


def _places(target: Target, logicals: Iterable[str], environ: Mapping[str, str] | None) -> list[tuple[str, int, str]]:
    found = []
    for logical in logicals:
        if target.table(logical) is not None:
            for place in shard_tables(target, logical):
                server = resolve(target.connections[place.connection], environ)
                found.append((server.host.lower(), server.port, place.name.lower()))
    return found


def _require_sharded(old: Target) -> None:
    for logical, rule in old.tables.items():
        if rule.sharding is not None and rule.sharding.function == "range":
            raise Refused(
                f"The shards of {logical!r} are ranges, and Lockstep cannot choose the new bounds.",
                where=f"targets.{old.name}.tables.{logical}.sharding",
                code="reshard.layout",
                remedy="add the new target to the pipeline file yourself, with its bounds and replay_only: true; "
                "then give its name with --name, and `lockstep reshard run` fills it",
            )
    if all(rule.sharding is None for rule in old.tables.values()):
        raise Refused(
            f"No table of the target {old.name!r} has shards.",
            where=f"targets.{old.name}",
            code="reshard.layout",
            remedy="add a target with `sharding` to the pipeline file; everything staged is applied to it by the next "
            "run",
        )


def _connections(old: Target, new: NewLayout) -> Sequence[str]:
    connections = new.connections or old.connections
    if len(connections) not in (1, new.databases):
        raise Refused(
            f"{len(connections)} servers cannot hold {new.databases} databases without saying which holds which.",
            where=f"targets.{old.name}.connections",
            code="reshard.layout",
            remedy="give --connection once, or once for each database number in order",
        )
    return connections


def _with_number(template: str, mark: str, count: int) -> str:
    has = any(name == mark for _, name, _, _ in Formatter().parse(template))
    return template if has or count == 1 else f"{template}_{{{mark}}}"


def _written_out(template: str, words: Mapping[str, str]) -> str:
    made = ""
    for text, name, spec, _ in Formatter().parse(template):
        made += text.replace("{", "{{").replace("}", "}}")
        if name is not None and name in words:
            made += format(words[name], spec or "").replace("{", "{{").replace("}", "}}")
        elif name is not None:
            made += f"{{{name}:{spec}}}" if spec else f"{{{name}}}"
    return made
