"""More shards for an application that writes to shards: the pipeline whose sources are those shards, and whose target
has more of them. (Before a cutover has led the application there, another layout is another target of the pipeline,
which runs fill from the stage.)

Where the number of shards grows to a multiple, the rows of a former shard go to its successors alone: of mod 64, shard
3 goes to 3, 67, 131 and 195 of mod 256. So each former shard is a logical table of its own, `orders_shard_3`, whose
rule names its successors (`sharding.former`). Each is copied, verified and led by itself; a row that is in the wrong
shard stops the run; and what the application writes to the successors can be carried back to the one table that they
came from.

The pipeline is only written. Names and servers in it may be changed before its first run, which refuses tables that
another pipeline writes to; a cutover refuses shards that the application has left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from cdc_core.config import MysqlTable, MysqlTarget, Pipeline, parse
from cdc_core.errors import Refused, UsageError
from cdc_core.meta import Cutover, Meta
from cdc_core.model.readable import counted
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.derived_pipeline import captured, kept, servers_of, write
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.targets.reading.sharding import ShardTable, shard_tables

_FIRST_ID = 1 << 31
"""From which on server_ids are chosen: apart from those of ways back (cutover.reverse)."""


@dataclass(frozen=True, slots=True)
class NewLayout:
    """How many databases there will be, and tables of each logical table in each of them."""

    databases: int
    tables: int

    @classmethod
    def parse(cls, text: str) -> NewLayout:
        """From `16x16`. Raises UsageError (usage.argument)."""
        match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
        if match is None:
            raise UsageError(
                f"{text!r} is not a layout.",
                where="--to",
                code="usage.argument",
                remedy="give the numbers of databases and of tables in each, as in 16x16",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.databases}x{self.tables}"


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Some of the former shards, which are moved by a pipeline of their own. suffix: of its name.

    A table that is not sharded belongs to shard 0.
    """

    suffix: str = ""
    numbers: frozenset[int] | None = None
    """None: all of them."""

    def places(self, old: MysqlTarget, logical: str) -> list[ShardTable]:
        return [place for place in shard_tables(old, logical) if self.numbers is None or place.number in self.numbers]

    @classmethod
    def parse(cls, text: str) -> ShardPart:
        """From `0-7,12`. The same shards have the same suffix, `_s0_7_s12`, however they are named, and others another
        one. Raises UsageError (usage.argument)."""
        ranges = [part.partition("-") for part in text.split(",")]
        bounds = [(first, last or first) for first, _, last in ranges]
        if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text) or any(
            int(last) < int(first) for first, last in bounds
        ):
            raise UsageError(
                f"{text!r} does not name shards.",
                where="--shards",
                code="usage.argument",
                remedy="give numbers and ranges of the former shards, as in 0-7,12",
            )
        numbers = frozenset(n for first, last in bounds for n in range(int(first), int(last) + 1))
        firsts = sorted(n for n in numbers if n - 1 not in numbers)
        lasts = sorted(n for n in numbers if n + 1 not in numbers)
        names = [f"_s{first}" + (f"_{last}" if last > first else "") for first, last in zip(firsts, lasts, strict=True)]
        return cls("".join(names), numbers)


@dataclass(frozen=True, slots=True)
class ReshardReport:
    """The pipeline that moves the shards, and its file."""

    pipeline: str
    old_target: str
    new_target: str
    layout: str
    successor: str
    file: Path

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "old_target": self.old_target,
            "new_target": self.new_target,
            "layout": self.layout,
            "successor": self.successor,
            "file": str(self.file),
        }


def write_successor(opened: OpenPipeline, file: Path, new: NewLayout, part: ShardPart) -> ReshardReport:
    """Writes the pipeline that moves the shards beside the file of the one that led the application to them. Safe to
    repeat.

    Raises UsageError (usage.nothing_open, usage.argument, usage.output_file), Refused (cutover.other_open,
    reshard.layout), and what resolving the servers raises.
    """
    pipeline = opened.pipeline
    old, logicals = _written_to(pipeline, _led(opened.meta, pipeline.pipeline))
    document = successor_document(pipeline, old, logicals, new, part)
    head = (
        f"# From the shards of {old.name}, to which the application of {pipeline.pipeline} was led, to more of them.\n"
        "# Each former shard is a logical table. Written by `lockstep reshard`.\n"
    )
    text = head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    written = file.with_name(f"{file.stem}_{new}{part.suffix}{file.suffix}")
    made = parse(text, where=str(written))
    if not written.exists():
        write(written, text)
    elif written.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{written} is there already, and is another pipeline.",
            where=str(written),
            code="usage.output_file",
            remedy="if it is the pipeline of this move, and was changed on purpose, run it; else remove it",
        )
    return ReshardReport(pipeline.pipeline, old.name, made.targets[0].name, str(new), made.pipeline, written)


def _led(meta: Meta, pipeline: str) -> Cutover:
    """The cutover by which the application came to the shards."""
    cutover = meta.cutovers.latest(pipeline)
    if cutover is None or cutover.state in (State.BACK, State.ROLLED_BACK):
        raise UsageError(
            f"The application writes to the sources of {pipeline!r}: no cutover has led it to shards.",
            where=pipeline,
            code="usage.nothing_open",
            remedy="add a target with the new layout to the pipeline file: runs fill it from the stage (docs/move.md)",
        )
    if cutover.state not in (State.SWITCHED, State.WATCH, State.COMPLETE):
        raise Refused(
            f"A cutover of {pipeline!r} is open: it is {cutover.state}.",
            where=pipeline,
            code="cutover.other_open",
            remedy=f"let it end, or end it (`lockstep cutover abort {pipeline}`); then begin again",
        )
    return cutover


def _written_to(pipeline: Pipeline, led: Cutover) -> tuple[MysqlTarget, tuple[str, ...]]:
    """The target that the application writes to, and its logical tables. Raises Refused (reshard.layout)."""
    names, tables = led.details["target"], led.details["tables"]
    if len(names) != 1:
        raise UsageError(
            f"The application was led back to {counted(len(names), 'server')}, not to shards of one target.",
            where=pipeline.pipeline,
            code="usage.argument",
            remedy="give the pipeline whose cutover led the application to the shards",
        )
    (name,) = names
    there = {(reference, *place) for reference, places in tables["targets"].items() for place in places}
    old, logicals = (
        next((database for database in pipeline.databases if database.name == name), None),
        tuple(tables["logical"]),
    )
    if old is not None and all(old.table(logical) for logical in logicals):
        places = [place for logical in logicals for place in shard_tables(old, logical)]
        if {(old.connections[place.connection], place.database, place.table) for place in places} <= there:
            return old, logicals
    raise Refused(
        f"The pipeline file does not name the tables any more to which the application was led (target {name!r}).",
        where=f"targets.{name}",
        code="reshard.layout",
        remedy="restore the target as it was at the cutover, then run the same command again",
    )


def successor_document(
    pipeline: Pipeline,
    old: MysqlTarget,
    logicals: Sequence[str],
    new: NewLayout,
    part: ShardPart,
) -> dict[str, Any]:
    """The pipeline file, as plain values. Raises as write_successor."""
    _require_shards(old, logicals, part)
    name = f"{pipeline.pipeline}_{new}{part.suffix}"
    places = {logical: part.places(old, logical) for logical in logicals}
    servers = servers_of(old, [place for some in places.values() for place in some], name)
    routes, rules = [], {}
    for logical in logicals:
        rule = old.table(logical)
        assert rule is not None  # the application was led to it
        _require_successors(old, logical, rule, new)
        for place in places[logical]:
            own = logical if rule.sharding is None else f"{logical}_shard_{place.number}"
            routes.append({"match": re.escape(place.name), "to": own})
            rules[own] = _new_rule(rule, logical, place, new)
    return {
        "pipeline": name,
        "schedule": pipeline.schedule,
        "sources": [server.document(_FIRST_ID, "latest") for server in servers],
        "tables": pipeline.tables.model_dump(mode="json", exclude_unset=True) | {"exclude": []} | captured(servers),
        "routes": routes,
        "snapshot": {"mode": "initial"} | pipeline.snapshot.elsewhere,
        "targets": [
            {
                "name": f"{old.name}_{new}",
                "connections": _connections(old, new),
                "on_missing_table": "create",
                "tables": rules,
            }
            | old.model_dump(mode="json", exclude_unset=True, include={"sessions", "part_rows"}),
        ],
        "cutover": pipeline.cutover.model_dump(mode="json", exclude_none=True, exclude={"switch_with"}),  # leads here
        **kept(pipeline, f"{new}{part.suffix}"),
    }


def _require_shards(old: MysqlTarget, logicals: Sequence[str], part: ShardPart) -> None:
    there = {place.number for logical in logicals for place in shard_tables(old, logical)}
    missing = sorted((part.numbers or set()) - there)
    if missing:
        raise UsageError(
            f"{old.name!r} has no shard {missing[0]}: there are {len(there)}, from 0 on.",
            where="--shards",
            code="usage.argument",
            remedy=f"give numbers up to {len(there) - 1}",
        )


def _require_successors(old: MysqlTarget, logical: str, rule: MysqlTable, new: NewLayout) -> None:
    if rule.sharding is None:
        return
    count, shards = rule.sharding.whole_count, new.databases * new.tables
    if rule.sharding.function not in ("mod", "hash") or shards % count:
        raise Refused(
            f"The {count} shards of {logical!r} ({rule.layout}) have no successors among {shards}.",
            where=f"targets.{old.name}.tables.{logical}.sharding",
            code="reshard.layout",
            remedy="after a cutover, the number of shards by mod or hash grows to a multiple. For another layout, lead "
            "the application back first, and give the pipeline another target",
        )


def _connections(old: MysqlTarget, new: NewLayout) -> list[str]:
    """The servers of the old databases have the new ones, too."""
    count = len(old.connections)
    if new.databases % count:
        raise Refused(
            f"{count} servers cannot hold {new.databases} databases without saying which holds which.",
            where=f"targets.{old.name}.connections",
            code="reshard.layout",
            remedy=f"give a multiple of {count} databases; name other servers in the file that is written",
        )
    return list(old.connections) * (new.databases // count if count > 1 else 1)


def _new_rule(rule: MysqlTable, logical: str, place: ShardTable, new: NewLayout) -> dict[str, Any]:
    """For the successors of a former shard, in databases and tables of their own. What templates say of the logical
    table is written out: it has another name here."""
    document = rule.model_dump(mode="json", exclude_unset=True)
    database, table = f"{rule.database}_{new}", rule.table
    if rule.sharding is not None:
        database, table = _with_number(database, "d", new.databases), _with_number(table, "t", new.tables)
        former = {"shard": place.number, "of": rule.sharding.whole_count}
        document["sharding"] |= {"databases": new.databases, "tables": new.tables, "former": former}
    first, dot, rest = logical.partition(".")
    words = {"logical": logical, "table": rest if dot else logical} | ({"database": first} if dot else {})
    return document | {"database": _written_out(database, words), "table": _written_out(table, words)}


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
