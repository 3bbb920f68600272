"""After a cutover: the pipeline whose sources are the shards that the application writes to, and whose target has more
of them.

Where the number of shards grows to a multiple, the rows of a former shard go to its successors alone: of mod 64, shard
3 goes to 3, 67, 131 and 195 of mod 256. So each former shard is a logical table of its own, `orders_shard_3`, whose
rule names its successors (`sharding.former`). Each is copied, verified and led by itself; a row that is in the wrong
shard stops the run; and what the application writes to the successors can be carried back to the one table that they
came from.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cdc_core.config import Pipeline, StageConfig, Target
from cdc_core.errors import Refused, UsageError
from cdc_core.model.version import VERSION_PATTERN
from cdc_core.mysql.connections import resolve
from cdc_core.operations.reshard.new_layout import NewLayout, new_name, new_rule, words_of
from cdc_core.targets.reading.sharding import ShardTable, shard_tables

_FIRST_ID, _IDS = 1 << 31, 1 << 30
"""server_ids: apart from those of ways back (cutover.reverse), and from small numbers that people choose."""


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Some of the former shards, which are moved by a pipeline of their own. suffix: of its name.

    A table that is not sharded belongs to shard 0.
    """

    suffix: str = ""
    numbers: frozenset[int] | None = None
    """None: all of them."""

    def has(self, place: ShardTable) -> bool:
        return self.numbers is None or place.number in self.numbers

    def places(self, old: Target, logical: str) -> list[ShardTable]:
        return [place for place in shard_tables(old, logical) if self.has(place)]

    @classmethod
    def parse(cls, text: str) -> ShardPart:
        """From `0-7,12`. The same shards have the same suffix, `_s0_7_s12`, however they are named, and others another
        one. Raises UsageError (usage.argument)."""
        ranges = [one.partition("-") for one in text.split(",")]
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


def successor_document(
    pipeline: Pipeline,
    old: Target,
    new: NewLayout,
    logicals: tuple[str, ...],
    name: str,
    part: ShardPart,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The pipeline file, as plain values. logicals: the tables of the former target. name: of the new one.

    Raises Refused (reshard.layout), UsageError (usage.argument), and what resolving the servers raises.
    """
    _require_shards(old, logicals, part)
    made = new_name(pipeline.pipeline, new, part.suffix)
    sources, routes, rules = _sources(old, logicals, made, part, environ), [], {}
    for logical in logicals:
        rule = old.table(logical)
        assert rule is not None  # the target had rows of it
        _require_successors(old, logical, new)
        for place in part.places(old, logical):
            own = logical if rule.sharding is None else f"{logical}_shard_{place.number}"
            routes.append({"match": re.escape(place.name), "to": own})
            rules[own] = new_rule(rule, new, words_of(logical))
            if rule.sharding is not None:
                former = {"shard": place.number, "of": rule.sharding.whole_count}
                rules[own]["sharding"] = rules[own]["sharding"] | {"former": former}
    connections = new.connections or old.connections
    if len(connections) not in (1, new.databases):
        raise Refused(
            f"{len(connections)} servers cannot hold {new.databases} databases without saying which holds which.",
            where=f"targets.{old.name}.connections",
            code="reshard.layout",
            remedy="give --connection once, or once for each database number in order",
        )
    return {
        "pipeline": made,
        "schedule": pipeline.schedule,
        "sources": [
            {
                "name": source,
                "connection": reference,
                "server_id": _FIRST_ID + zlib.crc32(source.encode()) % _IDS,
                "start": "latest",
            }
            for source, (reference, _) in sources.items()
        ],
        "tables": pipeline.tables.model_dump(mode="json", exclude_unset=True)
        | {
            "include": [re.escape(place.name) for _, places in sources.values() for place in places],
            "exclude": [],
            "columns": {"exclude": [VERSION_PATTERN]},
        },
        "routes": routes,
        "stage": _sibling(pipeline.stage, f"{new.name}{part.suffix}").model_dump(mode="json", exclude_none=True),
        "meta": pipeline.meta.model_dump(mode="json"),
        "snapshot": {"mode": "initial"} | pipeline.snapshot.elsewhere,
        "targets": [
            {"name": name, "connections": list(connections), "on_missing_table": "create", "tables": rules}
            | old.model_dump(mode="json", exclude_unset=True, include={"sessions", "part_rows"}),
        ],
        "spark": pipeline.spark.model_dump(mode="json"),
        "limits": pipeline.limits.model_dump(mode="json"),
        "cutover": pipeline.cutover.model_dump(mode="json", exclude_none=True, exclude={"switch_with"}),  # leads here
        "airflow": pipeline.airflow.model_dump(mode="json", exclude_none=True),
        **pipeline.kept_elsewhere,
    }


def successor_text(pipeline: Pipeline, old: Target, document: Mapping[str, Any]) -> str:
    """The pipeline file."""
    head = (
        f"# From the shards of {old.name}, to which the application of {pipeline.pipeline} was led, to more of them.\n"
        "# Each former shard is a logical table. Written by `lockstep reshard`.\n"
    )
    return head + yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)


def _sources(
    old: Target, logicals: tuple[str, ...], made: str, part: ShardPart, environ: Mapping[str, str] | None
) -> dict[str, tuple[str, list[ShardTable]]]:
    """By name: one for each server, however many connections lead to it, and its tables."""
    found: dict[tuple[str, int], tuple[str, list[ShardTable]]] = {}
    for logical in logicals:
        for place in part.places(old, logical):
            reference = old.connections[place.connection]
            server = resolve(reference, environ)
            found.setdefault((server.host.lower(), server.port), (reference, []))[1].append(place)
    return {f"{made}_{number}": one for number, one in enumerate(found.values())}


def _require_shards(old: Target, logicals: tuple[str, ...], part: ShardPart) -> None:
    there = {place.number for logical in logicals for place in shard_tables(old, logical)}
    missing = sorted((part.numbers or set()) - there)
    if missing:
        raise UsageError(
            f"{old.name!r} has no shard {missing[0]}: there are {len(there)}, from 0 on.",
            where="--shards",
            code="usage.argument",
            remedy=f"give numbers up to {len(there) - 1}",
        )


def _require_successors(old: Target, logical: str, new: NewLayout) -> None:
    rule = old.table(logical)
    if rule is None or rule.sharding is None:
        return
    where, count = f"targets.{old.name}.tables.{logical}.sharding", rule.sharding.whole_count
    if rule.sharding.function not in ("mod", "hash") or new.shards % count:
        raise Refused(
            f"The {count} shards of {logical!r} ({rule.layout}) have no successors among {new.shards}.",
            where=where,
            code="reshard.layout",
            remedy="after a cutover, the number of shards by mod or hash grows to a multiple. For another layout, lead "
            "the application back first, and reshard before the cutover",
        )


def _sibling(stage: StageConfig, name: str) -> StageConfig:
    uri = stage.uri.rstrip("/")
    separator = "/" if re.fullmatch(r"s3://[^/]+", uri) else "-"
    return stage.model_copy(update={"uri": f"{uri}{separator}{name}"})
