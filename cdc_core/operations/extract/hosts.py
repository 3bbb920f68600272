"""Which server of a source is read, and the batch that leads from one server's log to another's.

It must keep true that the server that was read last is used as long as it answers, so that two live servers do not
alternate, and that the manifests stay one chain across a change of servers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from cdc_core.config import Pipeline, Source
from cdc_core.errors import RetryLater
from cdc_core.meta import Lease
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.mysql import connections
from cdc_core.source.host import source_server
from cdc_core.source.host.failover import Failover, is_other_server
from cdc_core.stage.isolated import notes

log = logging.getLogger(__name__)

Connected = tuple[connections.Server, connections.SafeConnection, source_server.ServerFacts]


def connect(source: Source, stored: Checkpoint | None, replica_host: str = "") -> Connected:
    """The server that was read last, else the first that answers; it meets all requirements. The address leads to this
    server only.

    replica_host: our name as a replica; our own registration does not make the server_id taken.

    Raises what `source_server.require_all` does, RetryLater (connection.unreachable) when none answers, and Refused
    (source.several_servers).
    """
    away: list[RetryLater] = []
    with ExitStack() as opened:
        answering: list[Connected] = []
        for reference in source.connections:
            address = connections.resolve(reference)
            try:
                control = connections.connect(address, where=source.name, read_timeout=source.read_timeout_s)
                opened.callback(control.close)
                facts = source_server.facts(control)
            except RetryLater as error:
                if len(source.connections) > 1:  # the error of a single server is raised below
                    log.warning("%s: %s", source.name, error)
                away.append(error)
                continue
            found = (address, control, facts)
            if stored is None or not is_other_server(stored, facts):
                answering.insert(0, found)
                break
            answering.append(found)
        if not answering:
            raise away[0]
        address, chosen, facts = answering[0]
        source_server.require_all(facts.without_replica(replica_host), source)
        for _, other, _ in answering[1:]:
            other.close()
        if stored is not None and is_other_server(stored, facts):
            connections.require_one_server(address, where=source.name)
        chosen.identity = facts.identity
        opened.pop_all()
        return replace(address, identity=facts.identity), chosen, facts


def bridge(
    pipeline: Pipeline,
    lease: Lease,
    stored: Checkpoint,
    moved: Failover,
    left_out: Mapping[str, str],
    coverage: Mapping[str, TableCoverage],
) -> Manifest:
    """A batch without files, from where one log was left to where another continues. coverage: what changes by it."""
    window = pipeline.windows.containing(max(stored.watermark_us, stored.floor_us))
    return Manifest(
        pipeline=pipeline.pipeline,
        source=lease.source,
        epoch=lease.epoch,
        begin=stored,
        end=moved.start,
        window_start_us=window[0],
        window_end_us=window[1],
        parts=(),
        events=0,
        transactions=0,
        created_us=time.time_ns() // 1000,
        notes=(moved.note, *notes(left_out)),
        isolated=left_out,
        coverage=coverage,
        again_until=moved.again_until,
    )
