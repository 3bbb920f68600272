"""The formulae of docs/scale.md, held against real runs whose requests are counted at the interface of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import lockstep
from benchmarks import scale
from benchmarks.scale import Counting, Load
from tests.lab.made_blocks import Made
from tests.lab.made_line import Line
from tests.unit.operations.apply.test_compact import HOUR_US, Staged, insert, table_named

FEW = {"compaction": 5, "removal": 6, "opening": 3}
"""GETs that do not depend on the load: of starts, horizons, the newest batch, marks."""


@pytest.fixture(params=[Load(5, 7, 7), Load(3, 2, 2)], ids=["5 batches of 7 tables", "3 batches of 2 tables"])
def load(request: pytest.FixtureRequest) -> Load:
    found: Load = request.param
    return found


@pytest.fixture
def run(tmp_path: Path, load: Load) -> Iterator[Staged]:
    """A day of batches in which each table changes, on a store that counts."""
    line = Line.open(tmp_path)
    with line.meta:
        counting: Any = Counting(line.store)
        made = Staged(Line(line.pipeline, line.meta, counting, {}), tmp_path, [])
        for hour in range(load.batches):
            changes = [insert(hour, table_named(at)) for at in range(load.tables)]
            made.stage(hour * HOUR_US, Made(changes, ts=hour * HOUR_US + 1))
        yield made


def counted(run: Staged) -> Counting:
    store: Any = run.line.store
    found: Counting = store
    return found


def rows(run: Staged) -> int:
    engine = create_engine(run.line.pipeline.meta.url)
    with engine.connect() as connection:
        names = ("batch", "batch_file", "consume_record")
        return sum(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names)


def objects(run: Staged) -> int:
    return len(run.paths("")) - len(run.paths("starts/")) - len(run.paths("runs/"))


def next_day(run: Staged) -> None:
    run.stage(30 * HOUR_US, Made([insert(99, table_named(0))], ts=30 * HOUR_US))


def test_what_is_staged_costs_what_the_formula_says(run: Staged, load: Load) -> None:
    cost = scale.staged(load)
    starts = load.batches  # the harness asks for the start before each batch; an extractor does so once
    assert counted(run).puts - starts == cost.puts
    assert objects(run) == cost.objects
    run.line.plan("first")
    assert rows(run) == cost.rows


def test_a_compaction_costs_what_the_formula_says(run: Staged, load: Load) -> None:
    next_day(run)
    run.line.done("all")
    before, counted(run).calls = objects(run), Counter()
    run.compact()
    cost, more = scale.compaction(load), FEW["compaction"]
    store = counted(run)
    assert (objects(run) - before, store.puts, store.gets) == (cost.objects, cost.puts, cost.gets + more)


def test_a_removal_costs_what_the_formula_says(run: Staged, load: Load) -> None:
    next_day(run)
    run.line.done("all")
    run.compact()
    before, counted(run).calls = objects(run), Counter()
    run.removed()
    cost, more = scale.removal(load), FEW["removal"]
    store = counted(run)
    found = (objects(run) - before, store.puts, store.gets, store.calls["delete"])
    assert found == (cost.objects, cost.puts, cost.gets + more, cost.deletes)


def test_a_reader_of_a_compacted_day_needs_two_requests_and_not_two_for_each_batch(
    run: Staged, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_day(run)
    run.line.done("all")
    store = counted(run)
    monkeypatch.setattr("cdc_core.stage.public.open_store", lambda *_, **__: store)

    def asked() -> int:
        store.calls = Counter()
        name = table_named(1).name
        assert lockstep.open(run.root / "stage")[name].changes().to_arrow().num_rows == load.batches
        return store.gets

    more = FEW["opening"]
    assert asked() == scale.opening(load, compacted=False) + more
    run.compact()
    assert asked() == scale.opening(load, compacted=True) + more
