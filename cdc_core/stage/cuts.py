"""The cuts of a lake, on the stage: what makes the whole database readable as of a position.

    cuts/prepared/target=<t>/<snapshot>.json    a cut whose publication has begun; snapshot: of its rows in the lake
    cuts/target=<t>/<time>-<run>.json           a cut that is published

Whoever finds a prepared cut whose snapshot readers see, completes it: its publication was killed at its last step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cdc_core.model.cut import Cut
from cdc_core.model.paths import segment
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stage_records import reading_record

CUTS = "cuts/"


def _folder(target: str) -> str:
    return f"{CUTS}target={segment(target)}/"


def _prepared(target: str) -> str:
    return f"{CUTS}prepared/target={segment(target)}/"


def prepare(store: ObjectStore, cut: Cut, snapshot: int) -> None:
    """Before the publication of a cut, whose rows are a snapshot of `lockstep_cuts`."""
    store.put(f"{_prepared(cut.target)}{snapshot}.json", cut.to_bytes())


def complete(store: ObjectStore, target: str, published: Collection[int], *, before_us: int = 0) -> None:
    """Cuts that were prepared become those that readers find, as far as their snapshots are published; others that were
    made before a time will not be. Raises as `newest_first`."""
    for path, cut in _cuts_in(store, _prepared(target)):
        seen = int(path.rpartition("/")[2].removesuffix(".json")) in published
        if seen:
            store.put(f"{_folder(cut.target)}{cut.made_us:017d}-{segment(cut.run_id)}.json", cut.to_bytes())
        if seen or cut.made_us < before_us:
            store.delete(path)


def inherit(store: ObjectStore, target: str, mirror: str, heirs: Mapping[int, int]) -> None:
    """The cuts of a mirror have the heirs of its snapshots from now on. mirror: its name. Raises as `newest_first`."""
    for path, cut in newest_first(store, target):
        tables = tuple(
            replace(table, snapshot=heirs.get(table.snapshot, table.snapshot))
            if table.name == mirror and table.snapshot
            else table
            for table in cut.tables
        )
        if tables != cut.tables:
            store.put(path, replace(cut, tables=tables).to_bytes())


def newest_first(store: ObjectStore, target: str) -> Iterator[tuple[str, Cut]]:
    """The cuts of a target, with their paths. Raises DataAtRisk (stage.damaged), Refused (install.version)."""
    return _cuts_in(store, _folder(target))


def newest(store: ObjectStore, target: str) -> Cut | None:
    return next((cut for _, cut in newest_first(store, target)), None)


def _cuts_in(store: ObjectStore, folder: str) -> Iterator[tuple[str, Cut]]:
    for path in sorted((info.path for info in store.list(folder)), reverse=True):
        if path.endswith(".json"):
            with reading_record(path, store.uri, "cut of a lake"):
                cut = Cut.from_bytes(store.get(path))
            yield path, cut
