"""What pipelines that Lockstep writes beside another one have in common: the way back of a cutover, and the pipeline
that moves shards. Both read the tables of a target."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_core.config import MysqlTarget, Pipeline, StageConfig
from cdc_core.model.version import VERSION_PATTERN
from cdc_core.mysql.connections import resolve
from cdc_core.targets.reading.sharding import ShardTable

_IDS = 1 << 30


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server of a target, as the source of another pipeline. reference: the first by which the target names it."""

    name: str
    reference: str
    tables: tuple[str, ...]

    def document(self, first_id: int, start: Any) -> dict[str, Any]:
        """first_id: from which on its server_id is chosen, far from the small numbers that people choose by hand."""
        server_id = first_id + zlib.crc32(self.name.encode()) % _IDS
        return {"name": self.name, "connection": self.reference, "server_id": server_id, "start": start}


def servers_of(target: MysqlTarget, places: Iterable[ShardTable], name: str) -> tuple[TargetServer, ...]:
    """One for each server that has some of the tables, however many connections lead to it; `name_0`, `name_1`, ...
    Raises what resolving them raises."""
    servers: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for place in places:
        reference = target.connections[place.connection]
        server = resolve(reference)
        servers.setdefault((server.host.lower(), server.port), (reference, []))[1].append(place.name)
    return tuple(
        TargetServer(f"{name}_{number}", reference, tuple(tables))
        for number, (reference, tables) in enumerate(servers.values())
    )


def captured(servers: Iterable[TargetServer]) -> dict[str, Any]:
    """Rules of `tables` by which exactly these tables are read, without what Lockstep keeps in them."""
    return {
        "include": [re.escape(table) for server in servers for table in server.tables],
        "columns": {"exclude": [VERSION_PATTERN]},
    }


def kept(pipeline: Pipeline, stage: str) -> dict[str, Any]:
    """What the other pipeline keeps of this one. stage: names its own stage, beside this one's."""
    return {
        "stage": _beside(pipeline.stage, stage).model_dump(mode="json", exclude_none=True),
        "meta": pipeline.meta.model_dump(mode="json"),
        "spark": pipeline.spark.model_dump(mode="json"),
        "limits": pipeline.limits.model_dump(mode="json"),
        "airflow": pipeline.airflow.model_dump(mode="json", exclude_none=True),
        **pipeline.kept_elsewhere,
    }


def _beside(stage: StageConfig, name: str) -> StageConfig:
    uri = stage.uri.rstrip("/")
    bucket = re.fullmatch(r"s3://[^/]+", uri)
    return stage.model_copy(update={"uri": f"{uri}/lockstep-{name}" if bucket else f"{uri}-{name}"})


def write(file: Path, text: str) -> None:
    """In one step."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
