"""Readers while a purge removes what they read, whichever access comes after it: the whole answer, the answer from the
new horizon where that is what was asked for, or an error that names its way on; never anything in between."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import LockstepError
from cdc_core.model.batch import Manifest
from cdc_core.operations.apply.retention import _delete_before
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.layout import horizon_path
from cdc_core.stage.manifest import commit, verify
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.public import Stage
from cdc_core.stage.start_record import put as put_start
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made
from tests.lab.staged_tables import export
from tests.unit.stage.test_reader import insert, stage

WHOLE, REST = [1, 2, 3, 4], [4]
BATCHES = len(WHOLE)


Place = Callable[[], tuple[ObjectStore, list[Manifest]]]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Makes stages with BATCHES batches of a row each; `indirect`: in a directory, or on the S3 server."""
    made = open_store(f"file://{tmp_path}/made")
    batches = stage(made, *([Made([insert(number)])] for number in WHOLE))
    put_start(made, "shop", batches[0].begin, pipeline="p")
    for batch in batches:
        commit(made, batch)

    def in_directory() -> tuple[ObjectStore, list[Manifest]]:
        folder = tmp_path / uuid.uuid4().hex
        shutil.copytree(tmp_path / "made", folder)
        return open_store(folder.as_uri()), batches

    if request.param == "file":
        return in_directory
    bucket, endpoint = request.getfixturevalue("bucket"), request.getfixturevalue("s3_server").endpoint

    def in_bucket() -> tuple[ObjectStore, list[Manifest]]:
        store = open_store(f"s3://{bucket}/{uuid.uuid4().hex}", s3_endpoint=endpoint)
        for info in made.list(""):
            store.put(info.path, made.get(info.path))
        return store, batches

    return in_bucket


class Purging:
    """A store on which a purge comes right before the access `number`: up to the last batch, as `retention.purge` does
    it."""

    def __init__(self, store: ObjectStore, batches: list[Manifest], number: int) -> None:
        self._store, self._batches, self.left = store, batches, number

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("get", "stat", "list", "open_input", "local_path"):
            self.left -= 1
            if self.left == 0:
                self.purge()
        return found

    def purge(self) -> None:
        last = self._batches[-1].begin.position
        tables = {"shop.orders": BATCHES - 1}
        horizon = Horizon("shop", last, 0, self._batches[-2].batch_id, (), tables)
        self._store.put(horizon_path("shop"), horizon.to_bytes())
        _delete_before(self._store, horizon)


def of_state(read: Callable[[Stage], Any]) -> Callable[[Any, Path], Any]:
    return lambda store, folder: sorted(read(Stage(store, None)).to_arrow().column("id").to_pylist())


def exported(store: Any, folder: Path) -> Any:
    chain = Stage(store, None)._chains.all
    return list(range(1, 1 + export(store, chain, "shop.orders", folder / f"{uuid.uuid4().hex}.parquet")))


READERS: dict[str, tuple[Callable[[Any, Path], Any], tuple[Any, ...]]] = {
    "state": (of_state(lambda opened: opened["orders"].now()), (WHOLE,)),
    "changes": (of_state(lambda opened: opened["orders"].changes()), (WHOLE, REST)),
    "changes by key": (of_state(lambda opened: opened["orders"].changes(by_key=True)), (WHOLE, REST)),
    "state by SQL": (of_state(lambda opened: opened.sql('SELECT id FROM "shop.orders"')), (WHOLE,)),
    "changes by SQL": (of_state(lambda opened: opened.sql('SELECT id FROM "shop.orders_changes"')), (WHOLE, REST)),
    "export": (exported, (WHOLE,)),
    "verify": (lambda store, folder: verify(store, "shop", deep=True), ([],)),
}


def answer(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except LockstepError as error:
        return f"{'retry' if error.retriable else 'final'}: {error.code}"


CASES = [
    *(("file", reader) for reader in READERS),
    *(pytest.param("s3", reader, marks=() if reader == "state" else pytest.mark.matrix) for reader in READERS),
]


@pytest.mark.parametrize(("place", "reader"), CASES, indirect=["place"])
def test_a_purge_beside_a_reader_never_shortens_its_answer(place: Place, tmp_path: Path, reader: str) -> None:
    read, answers = READERS[reader]
    number, seen = 0, set()
    while True:
        number += 1
        store, batches = place()
        purging = Purging(store, batches, number)
        found = answer(lambda store=purging: read(store, tmp_path))
        assert found in (*answers, "retry: stage.removed", "final: stage.partial"), number
        seen.add(str(found))
        if purging.left > 0:
            break
    assert number > 5
    assert str(answers[0]) in seen
    assert reader == "verify" or len(seen) > 1, seen
