"""The records of erasures (`operations.forget`): `erasures/<id>.json` of one that has begun, `erased/<id>.json` of one
that has ended. Those that have ended may be many, and nobody needs to read them all.

A record says how many keys of which table were to be erased, and has a digest of them: whoever has the keys can tell
that they are meant, and nobody can read them from it once it has ended. Until then meta and the stage may differ, and
no run is planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cdc_core.errors import LeaseHeld
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.json_codec import Natural, TimeUs, dumped, parsed
from cdc_core.stage.layout import ERASURES, erasure_path
from cdc_core.stage.objects import ObjectStore, find
from cdc_core.stage.stage_records import reading_record

ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class Erasure:
    """pipeline, table: whose rows. keys: how many. keys_sha256: of the table and the keys. rows: staged rows that were
    erased. begun_us, ended_us: µs UTC, by meta's clock; 0 until it has ended. whole: False for one that a later erasure
    has ended: rows of its keys may be left. condition: a digest of the one that the keys were found by; "" for none.
    found: these keys until it has ended, because those whose rows are gone are found by nothing else."""

    pipeline: str
    table: str
    keys: Natural
    keys_sha256: str
    begun_us: TimeUs
    ended_us: TimeUs = 0
    rows: Natural = 0
    whole: bool = True
    condition: str = ""
    found: tuple[str, ...] = ()

    @property
    def request(self) -> str:
        """Its id: the same keys of a table have the same one."""
        return self.keys_sha256[:ID_CHARS]

    def begin(self, store: ObjectStore) -> None:
        store.put(erasure_path(self.request), dumped(self, version=MANIFEST_VERSION, indent=1))

    def withdraw(self, store: ObjectStore) -> None:
        """It has not changed anything."""
        store.delete(erasure_path(self.request))

    def end(self, store: ObjectStore) -> None:
        ended = dumped(replace(self, found=()), version=MANIFEST_VERSION, indent=1)
        store.put(erasure_path(self.request, ended=True), ended)
        store.delete(erasure_path(self.request))


def read(store: ObjectStore, request: str, *, ended: bool = False) -> Erasure | None:
    """One that has begun and not ended, or one that has ended; None where there is none. Raises DataAtRisk
    (stage.damaged), Refused (install.version)."""
    path = erasure_path(request, ended=ended)
    data = find(store, path)
    if data is None:
        return None
    with reading_record(path, store.uri, "record of an erasure"):
        return parsed(Erasure, data, version=MANIFEST_VERSION)


def unended(store: ObjectStore) -> Iterator[Erasure]:
    """Those that have not ended. Raises what `read` does."""
    for info in store.list(ERASURES):
        erasure = read(store, info.path.removeprefix(ERASURES).removesuffix(".json"))
        if erasure is not None:
            yield erasure


def require_ended(store: ObjectStore) -> None:
    """Raises RetryLater (lease.held) while rows are being erased, or as long as an erasure that was killed is not ended
    by another one."""
    for erasure in unended(store):
        raise under_way(store, erasure)


def under_way(store: ObjectStore, erasure: Erasure) -> LeaseHeld:
    """What is said of an erasure that has begun."""
    return LeaseHeld(
        f"Rows of {erasure.table} are being erased; no run is planned meanwhile.",
        where=f"{store.uri} {erasure_path(erasure.request)}",
        remedy="wait until the erasure has ended; if it was killed, repeat the same command (`forget`, with its keys)",
    )
