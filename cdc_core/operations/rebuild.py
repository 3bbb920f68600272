"""What meta knows of a source's chain, made again from its manifests."""

from __future__ import annotations

from cdc_core.errors import LeaseHeld
from cdc_core.model.position import Position
from cdc_core.operations.apply.turn import require_turn, turn_at
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import horizon as horizons
from cdc_core.stage import start_record
from cdc_core.stage.manifest import chain, newest, require_reached


def rebuild(opened: OpenPipeline, source: str) -> tuple[int, Position | None]:
    """How many batches were missing, and the position of the source then.

    Nobody adds to the chain meanwhile, or removes from it: what meta is told after the chain was read would be replaced
    by what the chain said then.

    Raises RetryLater (lease.held, lease.lost), and what reading the chain and Meta.rebuild raise.
    """
    meta, store = opened.meta, opened.store
    start_record.require_own(store, source, opened.name)
    lease_s = opened.pipeline.limits.lease_s
    taken = LeaseHeld(
        f"The source {source!r} is being extracted.",
        where=source,
        remedy=f"wait until it ends or, if it is dead, {lease_s:g} s for its lease to expire",
    )
    with (
        turn_at(opened) as turn,
        copier_lease(opened, source),
        # A DAG tries to extract the source all the time, and a long chain takes longer to read than a lease lasts.
        meta.leases.held(source, opened.holder, lease_s, taken=taken) as lease,
    ):
        horizon = horizons.read(store, source)
        manifests = tuple(chain(store, source))
        require_turn(meta, turn)
        _, added = meta.rebuild(lease, manifests, horizon.coverage if horizon is not None else None)
    stored = meta.positions.checkpoint(source)
    position = stored.position if stored is not None else None
    require_reached(store, source, newest(store, source), position)
    return added, position
