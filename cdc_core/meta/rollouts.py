"""Changes of definitions over the shards of a target: what was decided, and how far each shard is.

At most one rollout of a target is open. A shard moves by compare-and-set on the number of statements that it has
behind it. Every change happens under the lease of the rollout. A row may be one statement behind the server, which a
process that continues asks first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, insert, select, update

from cdc_core.errors import Overtaken
from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Lease
from cdc_core.meta.meta_schema import ddl_rollout as _rollout
from cdc_core.meta.meta_schema import ddl_shard as _shard
from cdc_core.meta.repository import Repository, reads, value_of, writes

OPEN, DONE, LEFT = "open", "done", "left"
"""States of a rollout; left: another one took it back before all shards had it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """script: the file's text. direction: up or down. prints: by server's version and logical table, the digests of the
    definition before the first statement and after each. ways: likewise, how each statement is executed."""

    rollout_id: str
    pipeline: str
    target: str
    name: str
    direction: str
    script: str
    prints: Mapping[str, Mapping[str, Sequence[str]]]
    ways: Mapping[str, Mapping[str, Sequence[str]]]
    state: str = OPEN
    created_us: int = 0
    updated_us: int = 0


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """behind: the statements that the shard has behind it. attempts: to execute the next one. error: of the last."""

    logical: str
    shard: int
    behind: int
    attempts: int = 0
    error: str = ""


class Rollouts(Repository):
    @reads
    def latest(self, target: str) -> Rollout | None:
        mine = _rollout.c.target == target
        order = (_rollout.c.created_us.desc(), _rollout.c.rollout_id)
        row = self.execute(select(_rollout).where(mine).order_by(*order).limit(1)).one_or_none()
        return None if row is None else _read(row)

    @reads
    def shards(self, rollout_id: str) -> tuple[ShardProgress, ...]:
        query = select(_shard).where(_shard.c.rollout_id == rollout_id).order_by(_shard.c.table_name, _shard.c.shard)
        return tuple(
            ShardProgress(row.table_name, row.shard, row.behind, row.attempts, row.last_error or "")
            for row in self.execute(query)
        )

    @writes
    def begin(self, lease: Lease, rollout: Rollout, progress: Sequence[ShardProgress]) -> Rollout:
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
                prints=json.dumps({"prints": rollout.prints, "ways": rollout.ways}),
            )
        )
        values = [
            {
                "rollout_id": rollout.rollout_id,
                "table_name": shard.logical,
                "shard": shard.shard,
                "behind": shard.behind,
                "attempts": 0,
                "updated_us": now,
            }
            for shard in progress
        ]
        if values:
            self.execute(insert(_shard), values)
        latest = self.latest(rollout.target)
        assert latest is not None
        return latest

    @writes
    def move_shard(
        self, lease: Lease, rollout_id: str, former: ShardProgress, behind: int, error: str = ""
    ) -> ShardProgress:
        """A shard has this many statements behind it, or its next one has failed.

        Raises RetryLater (lease.lost).
        """
        Leases(self.connection).require_held(lease)
        attempts = former.attempts + 1 if behind == former.behind else 0
        mine = (
            (_shard.c.rollout_id == rollout_id)
            & (_shard.c.table_name == former.logical)
            & (_shard.c.shard == former.shard)
            & (_shard.c.behind == former.behind)
        )
        values = {"behind": behind, "attempts": attempts, "last_error": error or None, "updated_us": self.now_us()}
        if self.execute(update(_shard).where(mine).values(values)).rowcount != 1:
            raise Overtaken(
                f"Another process has moved shard {former.shard} of {former.logical!r}.",
                where=former.logical,
                code="lease.lost",
                remedy="run `lockstep ddl resume`, which begins with what the servers have",
            )
        return ShardProgress(former.logical, former.shard, behind, attempts, error)

    @writes
    def finish(self, lease: Lease, rollout_id: str) -> None:
        """All shards have all statements. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        values = {"state": DONE, "updated_us": self.now_us()}
        self.execute(update(_rollout).where(_rollout.c.rollout_id == rollout_id).values(values))


def _read(row: Row) -> Rollout:  # type: ignore[type-arg]
    known = json.loads(row.prints)
    return value_of(Rollout, row, prints=known["prints"], ways=known["ways"])
