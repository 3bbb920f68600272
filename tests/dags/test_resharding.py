"""The tasks of the reshard DAG do what their commands do, on real servers; and what they say if one fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lockstep_airflow.reshard_tasks import ReshardOperator
from tests.acceptance.conftest import CommandLine
from tests.acceptance.reshard_shop import TABLES, Shop, execute, shop
from tests.lab.forked_commands import ForkedCommands


@pytest.fixture
def made(
    tmp_path: Path, commands: ForkedCommands, mariadb: Any, mariadb_target: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    with shop(CommandLine(tmp_path, commands), mariadb, mariadb_target) as found:
        for name, value in found.lockstep.environ.items():
            monkeypatch.setenv(name, value)
        yield found


def executed(file: Path, command: str, said: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """said: by the task `fill`."""
    ti = SimpleNamespace(
        dag_id="cdc_shop_reshard", run_id="r", task_id=command, map_index=-1, try_number=1,
        xcom_pull=lambda task_ids: {"fill": said}[task_ids],
    )  # fmt: skip
    context: Any = {"params": params, "ti": ti}
    task = ReshardOperator(task_id=command, file=str(file), step=command, connection="spark_default")
    return task.execute(context)


@pytest.mark.spark
def test_the_tasks_fill_a_target_with_another_layout_and_prove_it(made: Shop, caplog: pytest.LogCaptureFixture) -> None:
    made("run", "shop.yaml")
    asked = {"layout": "2x4", "connections": ["env:NEW"], "database": f"{made.name}_new_{{d}}"}
    with pytest.raises(AirflowFailException, match=r"usage\.argument"):  # not before a cutover
        executed(made.file, "plan", **asked, shards="0")
    assert "shards_2x4" in executed(made.file, "plan", **asked)["text"]
    assert "2x4" not in made.file.read_text()
    said = executed(made.file, "fill", **asked)
    assert (said["new_target"], said["fed_by_runs"]) == ("shards_2x4", True)
    assert executed(made.file, "fill", **asked) == said  # a retry finds that it is done
    for table in TABLES:
        places = [f"{made.name}_new_{d}.{table}_{t}" for d in range(2) for t in range(4)]
        assert made.rows(made.target, places) == made.at_source(table)
    assert executed(made.file, "verify", said, **asked)["equal"] is True
    execute(made.target, f"DELETE FROM {made.name}_new_0.orders_1 WHERE id = 1")
    with pytest.raises(AirflowFailException, match=r"verify\.differs"):
        executed(made.file, "verify", said, **asked)
    assert "leaked" not in caplog.text  # DuckDB's report of what a command has left


def test_after_a_cutover_the_pipeline_of_the_shards_is_the_one_that_is_verified(tmp_path: Path) -> None:
    with pytest.raises(AirflowSkipException, match="shop_4x4"):
        executed(tmp_path / "shop.yaml", "verify", {"new_target": "shards_4x4", "successor": "shop_4x4"})


def test_without_an_answer_of_fill_nothing_is_verified_and_nothing_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"run\.clear_task"):
        executed(tmp_path / "shop.yaml", "verify", None)


def test_what_the_operation_refuses_fails_the_task(made: Shop) -> None:
    with pytest.raises(AirflowFailException, match=r"stage\.partial"):
        executed(made.file, "plan", layout="4x4")
