"""A run that has many rows for a table writes them in parts, where no row depends on another; its account adds up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_core.model.run_plan import RunPlan, WriteCounts
from cdc_core.targets.writing import write_parts
from spark_jobs.filter import apply_filter
from spark_jobs.merge import merge
from spark_jobs.quality import check
from spark_jobs.write import write
from tests.history_model import Change
from tests.spark.staged_changes import table_schema
from tests.spark.target_line import TargetLine, target_line

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
ROWS = table_schema("shop.rows", {"id": "bigint", "n": "int"}, ["id"])


@dataclass
class PartsLine(TargetLine):
    """Two shards, each written in parts of 5 rows. parts_done: how many rows each part had, by table."""

    parts_done: list[tuple[str, int]] = field(default_factory=list)
    dies_after: int | None = None

    def filtered(self, *changes: Change) -> RunPlan:
        plan = self.planned(changes)
        merge(self.job(plan, target=None))
        apply_filter(self.job(plan))
        return plan

    def write(self, plan: RunPlan) -> list[WriteCounts]:
        """The counts of the shards. Everything adds up, and the rows are read back as they should be."""
        self.parts_done.clear()
        write(self.job(plan))
        check(self.job(plan))
        self.adds_up(plan)
        return self.counts(plan)[2]

    def held(self, *shards: int) -> dict[int, int]:
        """Of some shards, or of both."""
        return dict(
            self.query(" UNION ALL ".join(f"SELECT id, n FROM {self.places[number]}" for number in shards or (0, 1)))
        )


@pytest.fixture
def line(
    mysql9: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[PartsLine]:
    """By the driver alone and sharded by id, unless a test says otherwise."""
    monkeypatch.setenv("TARGET_URL", mysql9.url)
    said = {"driver_rows": 20_000, "sharded_by": "id", **getattr(request, "param", {})}
    sharding = {"key": said["sharded_by"], "databases": 1, "tables": 2}
    with target_line(
        request, mysql9, tmp_path, ROWS, "id BIGINT PRIMARY KEY, n INT", sharding,
        driver_rows=said["driver_rows"], made=PartsLine, part_rows=5,
    ) as made:  # fmt: skip
        real = write_parts.write_shard

        def noted(server: Any, write: Any, file: Any, **named: Any) -> Any:
            if made.dies_after is not None and len(made.parts_done) == made.dies_after:
                raise RuntimeError("killed")
            made.parts_done.append((write.facts.table, file.rows))
            return real(server, write, file, **named)

        monkeypatch.setattr(write_parts, "write_shard", noted)
        yield made


def of_table(done: list[tuple[str, int]], table: str) -> list[int]:
    return [rows for name, rows in done if name == table]


def inserts(*ids: int, seq: int = 10) -> list[Change]:
    return [Change("c", {"id": id, "n": id}, seq, at) for at, id in enumerate(ids)]


@pytest.mark.parametrize(
    "line",
    [pytest.param({}, id="driver"), pytest.param({"driver_rows": 0}, id="spark", marks=pytest.mark.matrix)],
    indirect=True,
)
def test_each_shard_is_written_in_parts_and_counted_once(line: PartsLine, caplog: pytest.LogCaptureFixture) -> None:
    plan = line.filtered(*inserts(*range(24), 100), Change("d", {"id": 50, "n": 0}, 11, 0))
    counts = line.write(plan)
    assert [(count.written, count.absent, count.number) for count in counts] == [(13, 1, 1), (12, 0, 1)]
    if line.parts_done:  # workers of Spark are processes of their own
        assert of_table(line.parts_done, "rows_0") == [5, 5, 4]
        assert of_table(line.parts_done, "rows_1") == [5, 5, 2]
    assert line.held() == {id: id for id in [*range(24), 100]}
    again = line.write(plan)
    assert [
        (shard_counts.written, shard_counts.equal, shard_counts.absent, shard_counts.number) for shard_counts in again
    ] == [(13, 13, 1, 2), (12, 12, 0, 2)]
    assert "in one transaction" not in caplog.text


def test_a_run_that_ends_after_some_parts_is_repeated_and_adds_up(line: PartsLine) -> None:
    plan = line.filtered(*inserts(*range(30)))
    line.dies_after = 3
    with pytest.raises(RuntimeError, match="killed"):
        write(line.job(plan))
    assert 0 < len(line.held()) < 30
    line.dies_after = None
    counts = line.write(plan)
    assert sum(count.written for count in counts) == 30
    assert sum(count.equal for count in counts) >= 5
    assert line.held() == {id: id for id in range(30)}


@pytest.mark.parametrize("line", [{"sharded_by": "n"}], indirect=True)
@pytest.mark.parametrize("dies_after", [None, 3, 9])
def test_rows_that_change_their_shard_arrive_in_parts_before_they_leave(
    line: PartsLine, dies_after: int | None
) -> None:
    line.write(line.filtered(*inserts(*range(24))))
    moves = [Change("u", {"id": id, "n": id + 1}, 20, id, before={"id": id, "n": id}) for id in range(23)]
    plan = line.filtered(*moves, Change("d", {"id": 23, "n": 23}, 20, 23))
    if dies_after is not None:
        line.parts_done.clear()
        line.dies_after = dies_after
        with pytest.raises(RuntimeError, match="killed"):
            write(line.job(plan))
        line.dies_after = None
        assert set(line.held()) >= set(range(23)), "some are in neither shard"
    counts = line.write(plan)
    assert sum(count.written + count.absent for count in counts) == 24
    for shard in (0, 1):  # the arrivals in parts, then the departures in one transaction
        done = of_table(line.parts_done, f"rows_{shard}")
        assert max(done[:-1]) == 5
        assert sum(done[:-1]) >= done[-1] > 5
    assert {**line.held(0), **line.held(1)} == {id: id + 1 for id in range(23)}
    assert not line.held(0).keys() & line.held(1).keys()


def test_a_run_with_a_changed_key_writes_each_shard_whole_and_says_why(
    line: PartsLine, caplog: pytest.LogCaptureFixture
) -> None:
    line.write(line.filtered(*inserts(*range(24))))
    changes = [Change("u", {"id": id, "n": -id}, 20, id, before={"id": id, "n": id}) for id in range(20)]
    changes.append(Change("u", {"id": 41, "n": 23}, 20, 99, before={"id": 23, "n": 23}))
    with caplog.at_level(logging.INFO):
        counts = line.write(line.filtered(*changes))
    assert "not in parts of 5: rows change their keys" in caplog.text
    assert [count.written for count in counts] == [10, 12]
    assert sorted(line.parts_done) == [("rows_0", 10), ("rows_1", 12)]
    assert line.held() == {**{id: -id for id in range(20)}, 20: 20, 21: 21, 22: 22, 41: 23}
