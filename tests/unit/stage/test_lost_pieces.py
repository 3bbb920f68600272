"""Whatever one loses of a stage, every reader that needs it notices; whatever one writes into it, none fails oddly."""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused
from cdc_core.model.batch import MANIFEST_VERSION, Manifest
from cdc_core.model.position import Checkpoint, Position
from cdc_core.stage import start_record
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.layout import horizon_path, manifest_path, start_path
from cdc_core.stage.manifest import chain, commit, newest, parse, require_listed, require_reached, verify
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made, at
from tests.lab.made_stages import insert, written
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes, table_state

SOURCES = ("shop", "shop2", "west")


def staged(root: Path, source: str, bounds: list[int]) -> list[Manifest]:
    """Committed batches of one-row transactions between the bounds."""
    store = open_store(f"file://{root}")
    start_record.put(store, source, Checkpoint(at(bounds[0])), pipeline="line")
    batches = []
    for start, stop in pairwise(bounds):
        made = [Made([insert(number, logical=source)], ts=number) for number in range(start, stop)]
        batches.append(written(store, start, made, source=source, watermark_us=stop))
        assert commit(store, batches[-1]).ours
    return batches


def purge(root: Path, batches: list[Manifest], *, remnants: bool) -> None:
    store = open_store(f"file://{root}")
    last = batches[-1]
    made = Horizon(last.source, last.end.position, last.window_end_us, last.batch_id, (), {"x": 1})
    store.put(horizon_path(last.source), made.to_bytes())
    for batch in batches if not remnants else ():
        for part in batch.parts:
            store.delete(part.path)
        store.delete(batch.path)


def notice(root: Path, ends: dict[str, Position]) -> dict[str, bool]:
    """Which readers refuse: each reads all that it may."""
    store = open_store(f"file://{root}")

    def refuses(read: Any) -> bool:
        try:
            read()
        except DataAtRisk:
            return True
        return False

    def fold() -> None:
        for source, end in ends.items():
            batches = list(chain(store, source))
            require_reached(store, source, batches[-1] if batches else None, end)
            if any(batch.parts for batch in batches):
                assert table_state(store, batches, source, partial=True).num_rows
                assert changes(store, batches, source).num_rows

    def extract() -> None:
        for source, end in ends.items():
            if start_record.read(store, source) is None:
                raise start_record.missing_start(store, source)
            require_reached(store, source, newest(store, source), end)

    return {
        "verify": any(verify(store, source, recorded=end) for source, end in ends.items()),
        "fold": refuses(fold),
        "extract": refuses(extract),
    }


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=3),
    purged=st.integers(0, 3),
)
def test_whatever_single_object_is_lost_readers_notice(steps, purged):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "stage"
        ends, newest_of = {}, {}
        for source, lengths in zip(SOURCES, steps, strict=False):
            bounds = [7]
            for length in lengths:
                bounds.append(bounds[-1] + length)
            batches = staged(root, source, bounds)
            if 0 < purged < len(batches):
                purge(root, batches[:purged], remnants=False)
            ends[source], newest_of[source] = at(bounds[-1]), batches[-1].path
        assert notice(root, ends) == {"verify": False, "fold": False, "extract": False}
        objects = [info.path for info in open_store(f"file://{root}").list("")]
        for lost in objects:
            copy = Path(folder) / "copy"
            shutil.copytree(root, copy)
            (copy / lost).unlink()
            found = notice(copy, ends)
            shutil.rmtree(copy)
            assert found["verify"], lost
            assert found["fold"], lost
            # An extractor needs to know where the chain ends, and that it began.
            assert found["extract"] == (lost.startswith("starts/") or lost in newest_of.values()), lost


@pytest.mark.parametrize("lost", ["first", "last", "all", "start", "all and start"])
def test_the_ends_of_a_chain_are_noticed(tmp_path, lost):
    batches = staged(tmp_path, "shop", [0, 1, 2, 3])
    store = open_store(f"file://{tmp_path}")
    gone = {"first": batches[:1], "last": batches[-1:], "start": []}.get(lost, batches)
    for batch in gone:
        store.delete(batch.path)
    if "start" in lost:
        store.delete(start_path("shop"))
    code = "stage.damaged" if "start" in lost else "stage.chain"
    assert [problem.code for problem in verify(store, "shop", recorded=at(3))] == [code]

    def read() -> None:
        found = list(chain(store, "shop"))
        require_reached(store, "shop", found[-1] if found else None, at(3))

    with raises(DataAtRisk, code):
        read()
    with pytest.raises(DataAtRisk):
        require_listed(store, "shop", [batch.path for batch in batches])


def test_a_batch_before_the_start_is_a_fork(tmp_path):
    staged(tmp_path, "shop", [0, 1, 2])
    store = open_store(f"file://{tmp_path}")
    store.delete(start_path("shop"))
    start_record.put(store, "shop", Checkpoint(at(1)), pipeline="line")
    assert [problem.code for problem in verify(store, "shop")] == ["stage.chain"]
    with raises(DataAtRisk, "stage.chain", match="inside"):
        list(chain(store, "shop"))


def test_the_first_start_stays_whoever_comes_later(tmp_path):
    store = open_store(f"file://{tmp_path}")
    first = Checkpoint(at(1), gtid_set="0-1-5", server="server_id=1", watermark_us=9)
    assert start_record.put(store, "shop", first, pipeline="line") == first
    assert start_record.put(store, "shop", Checkpoint(at(2)), pipeline="line") == first
    assert start_record.read(store, "shop") == first
    assert start_record.read(store, "west") is None


@pytest.mark.parametrize("version", [MANIFEST_VERSION - 1, MANIFEST_VERSION + 1, 99, None, "2", 2.0, True])
@pytest.mark.parametrize("kind", ["manifest", "start", "horizon"])
def test_a_file_of_another_version_is_refused_by_that_number(tmp_path, version, kind):
    batches = staged(tmp_path, "shop", [0, 1, 2])
    purge(tmp_path, batches[:1], remnants=False)
    store = open_store(f"file://{tmp_path}")
    path = {"manifest": batches[1].path, "start": start_path("shop"), "horizon": horizon_path("shop")}[kind]
    store.put(path, json.dumps(json.loads(store.get(path)) | {"version": version}).encode())
    with pytest.raises(Refused) as caught:
        list(chain(store, "shop"))
    assert (caught.value.code, path in caught.value.what) == ("install.version", True)
    assert f"{version!r}" in caught.value.what
    assert f"reads {MANIFEST_VERSION}" in caught.value.what
    if type(version) is int and version > MANIFEST_VERSION:
        assert "upgrade" in caught.value.remedy


@pytest.mark.parametrize(
    "edit",
    [
        {"rows": "5"}, {"rows": 5.0}, {"rows": -1}, {"rows": True}, {"rows": 2**63}, {"rows": None}, {"table": 1},
        {"path": "../../etc/passwd"}, {"path": "/etc/passwd"}, {"path": "manifests/other/0000-0000001-0000000004.json"},
        {"ops": {"c": "1"}}, {"ops": [1]}, {"sha256": None}, {"schema_id": "unknown"}, {"table": "other"},
        {"path": "\ud800"}, {"color": "red"},
    ],
)  # fmt: skip
def test_a_part_with_a_field_of_another_type_or_a_path_of_another_batch_is_not_read(tmp_path, edit):
    (batch,) = staged(tmp_path, "shop", [0, 1])
    store = open_store(f"file://{tmp_path}")
    data = json.loads(batch.to_bytes())
    data["parts"][0] |= edit
    store.put(batch.path, json.dumps(data).encode())
    with raises(DataAtRisk, "stage.damaged"):
        list(chain(store, "shop"))
    assert [problem.code for problem in verify(store, "shop")] == ["stage.damaged"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, part in inner for found in places(part, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["binlog.000009", 2**62, "id"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_manifest_whatever_it_says_makes_a_reader_fail_oddly(tmp_path, data):
    store = open_store(f"file://{tmp_path}")
    path = manifest_path("shop", at(0))
    if store.stat(path) is None:
        staged(tmp_path, "shop", [0, 1])
        store.put("original", store.get(path))
    document = json.loads(store.get("original"))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([drawn for drawn in places(document) if drawn and drawn[0] != "version"]))
        document = changed(document, place, data.draw(st.just(...) | JSON))
    text = json.dumps(document).encode()
    store.put(path, text[: data.draw(st.sampled_from([None, len(text) // 2]))])

    def calm(read: Any) -> None:
        try:
            read()
        except InternalError:
            raise
        except LockstepError:
            pass

    calm(lambda: parse(store.get(path), path, store.uri))
    calm(lambda: verify(store, "shop", deep=True, recorded=at(1)))
    calm(lambda: newest(store, "shop"))
    calm(lambda: changes(store, list(chain(store, "shop")), "shop"))
    calm(lambda: table_state(store, list(chain(store, "shop")), "shop"))
