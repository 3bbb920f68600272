"""Changes of definitions over the shards of a target: what was decided, and whether all shards have it.

At most one rollout of a target is open, and every change happens under its lease. How far each shard is, only the
servers say.
"""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import Row, insert, select, update

from cdc_core.errors import Refused
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Lease, Rollout
from cdc_core.meta.meta_schema import ddl_rollout as _rollout
from cdc_core.meta.repository import Repository, reads, value_of, writes

OPEN, DONE, LEFT = "open", "done", "left"
"""States of a rollout; left: another one took it back before all shards had it."""
_DECIDED = ("prints", "ways", "shards")
"""Fields of a rollout that are kept as one document, its column `decided`."""


def alterer_of(pipeline: str, target: str) -> str:
    """The lease under which the shards of a target are altered."""
    return "ddl:" + hashlib.sha256(f"{pipeline}/{target}".encode()).hexdigest()[:16]


def unfinished(rollout: Rollout) -> Refused:
    """A rollout that is open, to whoever would begin another one, and to `lockstep status`."""
    back = ", or take it back with `lockstep ddl run` of the same file and --down" if rollout.direction == "up" else ""
    return Refused(
        f"{rollout.name} ({rollout.direction}) has not reached all shards of {rollout.target!r}.",
        where=rollout.name,
        code="ddl.open",
        remedy=f"finish it with `lockstep ddl resume {rollout.pipeline} --target {rollout.target}`{back}",
    )


class Rollouts(Repository):
    @reads
    def latest(self, target: str) -> Rollout | None:
        mine = _rollout.c.target == target
        order = (_rollout.c.created_us.desc(), _rollout.c.rollout_id)
        row = self.execute(select(_rollout).where(mine).order_by(*order).limit(1)).one_or_none()
        return None if row is None else _read(row)

    def standing(self) -> tuple[Rollout, ...]:
        """The open ones that no process is at."""
        rows = self.execute(select(_rollout).where(_rollout.c.state == OPEN).order_by(_rollout.c.target))
        leases = Leases(self.connection)
        return tuple(
            _read(row) for row in rows if not leases.is_held(self.pipeline, alterer_of(self.pipeline, row.target))
        )

    @writes
    def begin(self, lease: Lease, rollout: Rollout) -> Rollout:
        """The rollout is decided; one of the target that is open is left. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        now = self.now_us()
        former = _rollout.c.target == rollout.target
        self.execute(update(_rollout).where(former, _rollout.c.state == OPEN).values(state=LEFT, updated_us=now))
        self.execute(
            insert(_rollout).values(
                rollout_id=rollout.rollout_id,
                target=rollout.target,
                name=rollout.name,
                direction=rollout.direction,
                script=rollout.script,
                state=OPEN,
                created_us=now,
                updated_us=now,
                decided=json.dumps({name: getattr(rollout, name) for name in _DECIDED}),
            )
        )
        latest = self.latest(rollout.target)
        assert latest is not None
        return latest

    @writes
    def finish(self, lease: Lease, rollout_id: str) -> None:
        """All shards have all statements. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        values = {"state": DONE, "updated_us": self.now_us()}
        self.execute(update(_rollout).where(_rollout.c.rollout_id == rollout_id).values(values))


def _read(row: Row) -> Rollout:  # type: ignore[type-arg]
    return value_of(Rollout, row, **json.loads(row.decided))
