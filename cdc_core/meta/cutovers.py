"""Cutovers: the state of each, and when it came there.

At most one cutover of a pipeline is open. Every move is a compare-and-set on the state, under the lease of the
cutover: a process that was paused and lost it moves nothing. Which moves there are, cutover_states says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, insert, select, update

from cdc_core.errors import Overtaken, RetryLater
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Cutover, Lease
from cdc_core.meta.meta_schema import cutover as _cutover
from cdc_core.meta.repository import Repository, reads, value_of, writes

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def lease_of(pipeline: str, way_back: str) -> tuple[str, str]:
    """The lease under which the cutovers between two pipelines are moved, and whose it is: one for both directions, so
    that whoever goes back does not meet one who goes there."""
    pair = min(pipeline, way_back)
    return "cutover:" + hashlib.sha256(pair.encode()).hexdigest()[:16], pair


class Cutovers(Repository):
    @reads
    def latest(self, pipeline: str) -> Cutover | None:
        """The latest cutover in which the application leaves the sources of this pipeline."""
        query = select(_cutover).where(_cutover.c.pipeline == pipeline)
        row = self.execute(query.order_by(_cutover.c.created_us.desc(), _cutover.c.cutover_id).limit(1)).one_or_none()
        return None if row is None else _read(row)

    def standing(self) -> tuple[Cutover, ...]:
        """The latest ones from and to the pipeline, if no process is at them."""
        rows = [self.latest(self.pipeline)]
        query = (
            select(_cutover).where(_cutover.c.way_back == self.pipeline).order_by(_cutover.c.created_us.desc()).limit(1)
        )
        rows += [_read(row) for row in self.execute(query)]
        cutovers = [row for row in rows if row is not None]
        if not cutovers:
            return ()
        key, pair = lease_of(cutovers[0].pipeline, cutovers[0].way_back)
        return () if Leases(self.connection).is_held(pair, key) else tuple(cutovers)

    @reads
    def tokens(self, states: Collection[str]) -> frozenset[str]:
        """The tokens of fences and gates that cutovers in these states have made, of all pipelines."""
        rows = self.execute(select(_cutover.c.details).where(_cutover.c.state.in_(states)))
        return frozenset(str(token) for row in rows if (token := json.loads(row.details).get("arming")))

    @writes
    def begin(self, lease: Lease, cutover: Cutover, over: Collection[str]) -> Cutover:
        """A new one. over: the states in which a former one is over.

        Raises RetryLater (lease.lost).
        """
        Leases(self.connection).require_held(lease)
        former = self.latest(cutover.pipeline)
        if former is not None and former.state not in over:
            raise _moved(cutover.pipeline, former.state)
        now = self.now_us()
        begun = replace(cutover, steps=((cutover.state, now),), created_us=now, updated_us=now)
        self.execute(
            insert(_cutover).values(
                cutover_id=begun.cutover_id,
                pipeline=begun.pipeline,
                way_back=begun.way_back,
                state=begun.state,
                steps=json.dumps(begun.steps),
                details=json.dumps(begun.details),
                created_us=now,
                updated_us=now,
            )
        )
        return begun

    @writes
    def move(
        self, lease: Lease, former: Cutover, state: str, details: Mapping[str, Any] = _NOTHING, error: str = ""
    ) -> Cutover:
        """Moves a cutover to a state, or changes its details. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        now = self.now_us()
        steps = former.steps if state == former.state else (*former.steps, (state, now))
        mine = (_cutover.c.cutover_id == former.cutover_id) & (_cutover.c.state == former.state)
        values = {
            "state": state,
            "steps": json.dumps(steps),
            "details": json.dumps({**former.details, **details}),
            "last_error": error or None,
            "updated_us": now,
        }
        if self.execute(update(_cutover).where(mine).values(values)).rowcount != 1:
            raise _moved(former.pipeline, former.state)
        return replace(
            former, state=state, steps=steps, details={**former.details, **details}, error=error, updated_us=now
        )


def _moved(pipeline: str, state: str) -> RetryLater:
    return Overtaken(
        f"Another process has moved the cutover of {pipeline!r}, which was {state}.",
        where=pipeline,
        remedy="see `lockstep cutover status PIPELINE`",
    )


def _read(row: Row) -> Cutover:  # type: ignore[type-arg]
    steps = tuple((str(state), int(at)) for state, at in json.loads(row.steps))
    return value_of(Cutover, row, steps=steps, details=json.loads(row.details), error=row.last_error or "")
