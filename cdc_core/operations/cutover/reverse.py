"""The pipeline that carries an application's writes from the tables of a target back to the tables that they came from.

It is a pipeline like any other, with a file of its own: the servers of the target are its sources, and of the source
its targets. It captures exactly the tables that the forward pipeline writes, and keeps versions beside the old tables
(guard.store: table), so that these keep their shape. It begins at the positions that the servers have when the
application is switched, in the same stage's sibling folder and the same meta database.

What does not arrive unchanged cannot be carried back: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cdc_core.config import NAME, WAY_BACK_SUFFIX, MysqlTarget, Pipeline, Verify
from cdc_core.errors import Refused
from cdc_core.model.position import Position
from cdc_core.model.version import VERSION_PATTERN
from cdc_core.operations.derived_pipeline import TargetServer, captured, kept, servers_of
from cdc_core.targets.reading.sharding import ShardTable, shard_tables

VERIFIED = "0 * * * *"
"""When the DAG of the way back verifies it. A person may change that in its file."""
_FIRST_ID = 1 << 30
"""From which on the server_ids of the sources of ways back are chosen."""


@dataclass(frozen=True, slots=True)
class ReverseOrigin:
    """The one table of a source that feeds a logical table. reference: to the source's server."""

    logical: str
    source: str
    reference: str
    database: str
    table: str


@dataclass(frozen=True, slots=True)
class Reverse:
    """The way back of a pipeline: `document` makes the file of it."""

    forward: Pipeline
    target: MysqlTarget
    origins: tuple[ReverseOrigin, ...]
    sources: tuple[TargetServer, ...]

    @property
    def name(self) -> str:
        return self.forward.pipeline + WAY_BACK_SUFFIX

    def target_of(self, source: str) -> str:
        """The name of the target that is a source of the forward pipeline."""
        return _checked(f"{self.name}_{source}", f"source {source}")

    def document(self, starts: Mapping[str, Position]) -> dict[str, Any]:
        """The pipeline file, as plain values. starts: by source of the way back."""
        forward = self.forward
        return {
            "pipeline": self.name,
            "schedule": forward.schedule,
            "sources": [
                source.document(_FIRST_ID, {"position": _place(starts[source.name])}) for source in self.sources
            ],
            "tables": captured(self.sources),
            "routes": [{"match": _any_of(self._places(origin)), "to": origin.logical} for origin in self.origins],
            "targets": [
                {
                    "name": self.target_of(source),
                    "connections": [reference],
                    "existing": "keep",
                    "tables": {
                        origin.logical: {
                            "database": _literal(origin.database),
                            "table": _literal(origin.table),
                            "guard": {"store": "table"},
                        }
                        | self._former(origin.logical)
                        for origin in self.origins
                        if origin.source == source
                    },
                }
                for source, reference in {origin.source: origin.reference for origin in self.origins}.items()
            ],
            "verify": self._verified().model_dump(mode="json", exclude_none=True),
            "cutover": forward.cutover.model_dump(mode="json", exclude_none=True),
            **kept(forward, "back"),
        } | ({"snapshot": pace} if (pace := forward.snapshot.elsewhere) else {})  # verifications keep to it

    def _verified(self) -> Verify:
        """All the time, so that status can say that the application could go back; and as a proof."""
        return self.forward.verify.model_copy(update={"schedule": VERIFIED, "mode": "ordered", "repair": False})

    def _former(self, logical: str) -> dict[str, Any]:
        """The keys of a table that was a shard: it takes the rows of this shard alone."""
        rule = self.target.table(logical)
        sharding = rule.sharding if rule is not None else None
        if sharding is None or sharding.former is None:
            return {}
        former = sharding.former
        own = {"databases": 1, "tables": former.of, "former": former.model_dump(mode="json")}
        return {"sharding": {"key": sharding.key, "function": sharding.function} | own}

    def text(self, starts: Mapping[str, Position], mark: str = "") -> str:
        """The pipeline file. mark: says by which cutover it was made."""
        head = (
            f"# The way back of {self.forward.pipeline}: it carries what the application writes to the tables of\n"
            f"# {self.target.name} to the tables that they came from. Written by `lockstep cutover`{mark}.\n"
        )
        return head + yaml.safe_dump(self.document(starts), sort_keys=False, allow_unicode=True, width=110)

    def _places(self, origin: ReverseOrigin) -> tuple[ShardTable, ...]:
        return shard_tables(self.target, origin.logical)


def reverse_of(pipeline: Pipeline, target: MysqlTarget, origins: Sequence[ReverseOrigin]) -> Reverse:
    """The way back from a target of a pipeline. origins: every table of a source that feeds the target.

    Raises Refused (cutover.no_way_back), and what resolving the target's servers raises.
    """
    problems = [*_changed(pipeline), *_untold(origins), *_bounded(pipeline, target, origins)]
    if problems:
        raise Refused(
            f"What the application writes to {target.name!r} could not be carried back: {'; '.join(problems)}.",
            where=pipeline.pipeline,
            code="cutover.no_way_back",
            remedy="leave these tables out of the pipeline that is switched, or carry them without such a rule",
        )
    places = [place for logical in _logicals(origins) for place in shard_tables(target, logical)]
    servers = servers_of(target, places, f"{pipeline.pipeline}{WAY_BACK_SUFFIX}_{target.name}")
    for server in servers:
        _checked(server.name, f"target {target.name}")
    return Reverse(pipeline, target, tuple(origins), servers)


def _changed(pipeline: Pipeline) -> list[str]:
    """Rules after which a row of the target is not the row of the source."""
    tables = pipeline.tables
    found = []
    if tables.columns.mask:
        found.append("columns are masked (tables.columns.mask)")
    if set(tables.columns.exclude) - {VERSION_PATTERN}:
        found.append("columns are left out (tables.columns.exclude)")
    if tables.rows:
        found.append("rows are left out (tables.rows)")
    if tables.processors:
        found.append("processors change columns (tables.processors)")
    return found


def _untold(origins: Sequence[ReverseOrigin]) -> list[str]:
    by_logical: dict[str, list[ReverseOrigin]] = {}
    for origin in origins:
        by_logical.setdefault(origin.logical, []).append(origin)
    return [
        f"{len(found)} tables feed {logical}, and nothing says to which of them a row belongs"
        for logical, found in by_logical.items()
        if len(found) > 1
    ]


def _bounded(pipeline: Pipeline, target: MysqlTarget, origins: Sequence[ReverseOrigin]) -> list[str]:
    """Options of tables that keep rows of the target apart from those of the source."""
    found = []
    for logical in _logicals(origins):
        rule = target.table(logical)
        if rule is None:
            found.append(f"{logical} does not go to {target.name}")
        elif rule.on_row_error == "quarantine":
            found.append(f"rows of {logical} may be set aside (on_row_error: quarantine)")
    return found


def _logicals(origins: Sequence[ReverseOrigin]) -> list[str]:
    return list(dict.fromkeys(origin.logical for origin in origins))


def _checked(name: str, where: str) -> str:
    if NAME.match(name):
        return name
    raise Refused(
        f"The name of the way back, {name!r}, is longer than 48 characters.",
        where=where,
        code="cutover.no_way_back",
        remedy="give the pipeline a shorter name",
    )


def _any_of(places: Sequence[ShardTable]) -> str:
    return "|".join(re.escape(place.name) for place in places)


def _literal(name: str) -> str:
    """A name as a template of that name."""
    return name.replace("{", "{{").replace("}", "}}")


def _place(position: Position) -> dict[str, Any]:
    return {"file": position.file, "offset": position.offset}
