"""The cuts of a lake, on the stage: what makes the whole database readable as of a position."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_core.model.cut import Cut
from cdc_core.model.paths import segment
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stage_records import reading_record

CUTS = "cuts/"


def _folder(target: str) -> str:
    return f"{CUTS}target={segment(target)}/"


def put(store: ObjectStore, cut: Cut) -> None:
    store.put(f"{_folder(cut.target)}{cut.made_us:017d}-{segment(cut.run_id)}.json", cut.to_bytes())


def newest_first(store: ObjectStore, target: str) -> Iterator[tuple[str, Cut]]:
    """The cuts of a target, with their paths. Raises DataAtRisk (stage.damaged), Refused (install.version)."""
    for path in sorted((one.path for one in store.list(_folder(target))), reverse=True):
        if path.endswith(".json"):
            with reading_record(path, store.uri, "cut of a lake"):
                cut = Cut.from_bytes(store.get(path))
            yield path, cut


def newest(store: ObjectStore, target: str) -> Cut | None:
    return next((cut for _, cut in newest_first(store, target)), None)
