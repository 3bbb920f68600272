"""Which runs a lake still shows, for comparison with the ledgers in meta: those in the ancestry of what readers see."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from cdc_core.config import IcebergTarget
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of
from cdc_core.lake.snapshots import NUMBER, RUN, ancestry, head, number_below, said

Shard = tuple[str, str]


def published_runs(
    catalog: Catalog, target: IcebergTarget, wanted: Mapping[Shard, Collection[str] | None]
) -> dict[Shard, dict[str, int]]:
    """The numbers of the snapshots that readers' tables come from, by run. wanted: by logical table and mirror, the
    runs to look for; None: all. Mirrors that the rules do not name any more are left out. Raises as `catalog_answers`.

    Numbers grow along a table's snapshots, and none comes twice. So a run whose snapshot has expired has a lower number
    than the oldest one that is left, and one that was rolled back has not: the number below stands for both.
    """
    found: dict[Shard, dict[str, int]] = {}
    shards = [shard for shard in wanted if target.table(shard[0]) is not None]
    shards = [shard for shard in shards if name_of(identifier(target, shard[0])) == shard[1]]
    if not shards:
        return found
    with catalog_answers(target):
        for shard in shards:
            found[shard] = {}
            try:
                table = catalog.load_table(identifier(target, shard[0]))
            except NoSuchTableError:
                continue
            shown = {
                said(snapshot, RUN): int(said(snapshot, NUMBER))
                for snapshot in ancestry(table, head(table))
                if said(snapshot, RUN)
            }
            below = min(shown.values()) - 1 if shown else number_below(table, head(table))
            found[shard] = dict.fromkeys(wanted[shard] or (), below) | shown
    return found
