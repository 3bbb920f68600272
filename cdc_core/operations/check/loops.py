"""Loops: a target table that its own pipeline captures. Each write there would come back as a new change, for ever."""

from __future__ import annotations

from cdc_core.config import MysqlTarget, Pipeline
from cdc_core.errors import Refused
from cdc_core.model.run_plan import RunPlan
from cdc_core.mysql.connections import resolve
from cdc_core.source.capture import Capture
from cdc_core.targets.reading.sharding import ShardTable, shard_tables


def require_no_loop(pipeline: Pipeline, place: ShardTable) -> None:
    """For a physical table on a server that is also read. Raises Refused (check.loop) when the pipeline captures it."""
    captures = [Capture(pipeline.tables, pipeline.routes, lower_case=way).captures for way in (False, True)]
    if any(captured(place.database, place.table) for captured in captures):
        raise Refused(
            f"This pipeline writes {place.name} and captures it, on the same server: a loop.",
            where=place.name,
            code="check.loop",
            remedy="exclude it (tables.exclude), or write to another database or server",
        )


def require_no_loops(pipeline: Pipeline, plan: RunPlan) -> None:
    """For everything that a run would write. Servers are compared by address, as a run of staged batches does not
    connect to sources; `lockstep check` does, and also recognizes a server with two addresses. Raises as
    require_no_loop.
    """
    read = {_address(reference) for source in pipeline.sources for reference in source.connections}
    for run in plan.targets:
        target = pipeline.target(run.target)
        if not isinstance(target, MysqlTarget):
            continue
        written = [_address(reference) for reference in target.connections]
        if not run.batches or not read.intersection(written):
            continue
        for table in plan.merge_set(run.merge_set).tables:
            if target.table(table.table) is not None:
                for place in shard_tables(target, table.table):
                    if written[place.connection] in read:
                        require_no_loop(pipeline, place)


def _address(reference: str) -> tuple[str, int]:
    server = resolve(reference)
    return server.host.lower(), server.port
