"""Cutovers: the state of each, and when it came there.

Of a pipeline's cutovers at most one is open. Every move is a compare-and-set on the state, under the lease of the
cutover: a process that was paused and lost it moves nothing. Which moves there are, cutover.states says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from cdc_core.errors import Overtaken, RetryLater
from cdc_core.meta import leases, tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import Lease

_cutover = tables.cutover


@dataclass(frozen=True, slots=True)
class Cutover:
    """pipeline: whose sources the application leaves. way_back: the pipeline in the other direction. steps: the states
    that it went through, each with the time, µs UTC. details: what its steps have to know of each other, JSON."""

    cutover_id: str
    pipeline: str
    way_back: str
    state: str
    steps: tuple[tuple[str, int], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    created_us: int = 0
    updated_us: int = 0

    @property
    def switched(self) -> bool:
        """Whether it has led the application to the new tables; another one may have led it back since."""
        return self.state in ("SWITCHED", "WATCH", "COMPLETE")

    def at_us(self, state: str) -> int | None:
        """When it last came to a state."""
        return next((at for name, at in reversed(self.steps) if name == state), None)


def lease_of(pipeline: str, way_back: str) -> tuple[str, str]:
    """The lease under which the cutovers between two pipelines are moved, and whose it is: one for both directions, so
    that whoever goes back does not meet one who goes there."""
    pair = min(pipeline, way_back)
    return "cutover:" + hashlib.sha256(pair.encode()).hexdigest()[:16], pair


def standing(connection: Connection, pipeline: str) -> tuple[Cutover, ...]:
    """The latest ones from and to a pipeline, if no process is at them."""
    rows = [latest(connection, pipeline)]
    query = select(_cutover).where(_cutover.c.way_back == pipeline).order_by(_cutover.c.created_us.desc()).limit(1)
    rows += [_read(row) for row in connection.execute(query)]
    found = [one for one in rows if one is not None]
    if not found:
        return ()
    key, pair = lease_of(found[0].pipeline, found[0].way_back)
    return () if leases.is_held(connection, pair, key) else tuple(found)


def latest(connection: Connection, pipeline: str) -> Cutover | None:
    """Of those in which the application leaves the sources of this pipeline."""
    query = select(_cutover).where(_cutover.c.pipeline == pipeline)
    row = connection.execute(query.order_by(_cutover.c.created_us.desc(), _cutover.c.cutover_id).limit(1)).one_or_none()
    return None if row is None else _read(row)


def tokens(connection: Connection, states: Collection[str]) -> frozenset[str]:
    """Of what cutovers in these states, of all pipelines, have fenced and gated."""
    rows = connection.execute(select(_cutover.c.details).where(_cutover.c.state.in_(states)))
    return frozenset(str(token) for row in rows if (token := json.loads(row.details).get("arming")))


def begin(connection: Connection, lease: Lease, cutover: Cutover, over: Collection[str]) -> Cutover:
    """A new one. over: the states in which a former one is over.

    Raises RetryLater (lease.lost).
    """
    leases.require_held(connection, lease)
    former = latest(connection, cutover.pipeline)
    if former is not None and former.state not in over:
        raise _moved(cutover.pipeline, former.state)
    now = now_us(connection)
    begun = replace(cutover, steps=((cutover.state, now),), created_us=now, updated_us=now)
    connection.execute(
        insert(_cutover).values(
            cutover_id=begun.cutover_id, pipeline=begun.pipeline, way_back=begun.way_back, state=begun.state,
            steps=json.dumps(begun.steps), details=json.dumps(begun.details), created_us=now, updated_us=now,
        )
    )  # fmt: skip
    return begun


def move(
    connection: Connection, lease: Lease, former: Cutover, state: str, details: Mapping[str, Any], error: str
) -> Cutover:
    """To a state, or to the same one with other details. Raises RetryLater (lease.lost)."""
    leases.require_held(connection, lease)
    now = now_us(connection)
    steps = former.steps if state == former.state else (*former.steps, (state, now))
    mine = (_cutover.c.cutover_id == former.cutover_id) & (_cutover.c.state == former.state)
    values = {
        "state": state,
        "steps": json.dumps(steps),
        "details": json.dumps({**former.details, **details}),
        "last_error": error or None,
        "updated_us": now,
    }
    if connection.execute(update(_cutover).where(mine).values(values)).rowcount != 1:
        raise _moved(former.pipeline, former.state)
    return replace(former, state=state, steps=steps, details={**former.details, **details}, error=error, updated_us=now)


def _moved(pipeline: str, state: str) -> RetryLater:
    return Overtaken(
        f"Another process has moved the cutover of {pipeline!r}, which was {state}.",
        where=pipeline,
        remedy="see `lockstep cutover status PIPELINE`",
    )


def _read(row: Row) -> Cutover:  # type: ignore[type-arg]
    steps = tuple((str(state), int(at)) for state, at in json.loads(row.steps))
    return Cutover(
        row.cutover_id, row.pipeline, row.way_back, row.state, steps, json.loads(row.details), row.last_error or "",
        row.created_us, row.updated_us,
    )  # fmt: skip
