"""From a pipeline file to tasks, and from tasks to operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
from jinja2 import Template

from cdc_core import config
from cdc_core.model.windows import Windows, from_us, to_us
from lockstep_airflow.render import render
from lockstep_airflow.specs import TaskKind, dag_spec, dag_specs
from tests.dags.made_pipelines import TARGET


@pytest.fixture
def spec(write_pipeline: Callable[..., Path]) -> Any:
    file = write_pipeline("shop", airflow="sensor: reschedule, poke_interval_s: 7, retries: 2, pool: cdc")
    return dag_spec(config.load(file), file)


@pytest.fixture
def dag(spec: Any) -> Any:
    return render(spec)


def test_every_target_has_a_group_of_its_own_behind_one_merge(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop", targets=[TARGET, TARGET | {"name": "plan"}])
    spec = dag_spec(config.load(file), file)
    assert spec.task("to_plan.filter").upstream == ("merge",)
    assert spec.task("to_main.commit").upstream == ("to_main.quality",)
    assert len({task.task_id for task in spec.tasks}) == len(spec.tasks) == 3 + 2 * 4


def test_a_pipeline_without_targets_only_stages(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop", targets=[])
    line, copy = dag_specs(config.load(file), file)
    assert [task.kind for task in line.tasks] == [TaskKind.EXTRACT]
    assert (line.dag_id, copy.dag_id) == ("cdc_shop", "cdc_shop_snapshot")


def test_a_replay_extracts_nothing_and_is_of_one_target(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop", targets=[TARGET, TARGET | {"name": "new"}])
    _, _, replay, _ = dag_specs(config.load(file), file)
    assert [task.kind for task in replay.tasks][:2] == [TaskKind.REPLAN, TaskKind.SPARK]
    dag = render(replay)
    assert (dag.dag_id, dag.get_task("to_new.filter").upstream_task_ids) == ("cdc_shop_replay", {"merge"})
    assert dag.params.get_param("target").schema["enum"] == ["main", "new"]
    assert not [task for task in dag.tasks if task.task_id == "extract"]


def test_tags_tell_the_pipelines_from_what_is_triggered_by_hand(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop", retention="keep: 30d")
    dags = [render(spec) for spec in dag_specs(config.load(file), file)]
    assert {dag.dag_id: dag.tags for dag in dags} == {
        "cdc_shop": {"lockstep", "lockstep:pipeline", "shop"},
        "cdc_shop_snapshot": {"lockstep", "lockstep:by hand", "shop"},
        "cdc_shop_replay": {"lockstep", "lockstep:by hand", "shop"},
        "cdc_shop_retention": {"lockstep", "lockstep:housekeeping", "shop"},
        "cdc_shop_verify": {"lockstep", "lockstep:by hand", "shop"},
    }
    assert all(dag.description and dag.doc_md and dag.doc_md != dag.description for dag in dags)


def test_retention_gives_a_dag_of_its_own_with_its_schedule(write_pipeline: Callable[..., Path]) -> None:
    file = write_pipeline("shop", retention="keep: 30d, schedule: '0 5 * * *'")
    specs = dag_specs(config.load(file), file)
    dag = render(specs[3])
    assert [(task.task_id, task.upstream_task_ids) for task in dag.tasks] == [("purge", set()), ("sweep", {"purge"})]
    assert (specs[3].schedule, type(dag.timetable)) == ("0 5 * * *", type(render(specs[0]).timetable))


def test_existing_rows_are_copied_by_a_dag_of_their_own_that_the_pipeline_starts_only_if_the_file_says_so(
    write_pipeline: Callable[..., Path],
) -> None:
    file = write_pipeline("shop", snapshot="mode: initial")
    line, snapshot, *_ = dag_specs(config.load(file), file)
    start = render(line).get_task("snapshot")
    assert (start.upstream_task_ids, start.downstream_task_ids) == ({"extract"}, set())
    assert start.dag_id_of_copy == snapshot.dag_id == "cdc_shop_snapshot"
    dag = render(snapshot)
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "plan": set(), "copy": {"plan"}
    }  # fmt: skip
    # A run that another DAG has started must not wait for somebody to switch this one on.
    assert (dag.is_paused_upon_creation, dag.max_active_runs, snapshot.schedule) == (False, 1, None)
    task = dag.get_task("copy")
    assert (task.expand_input.value, task.partial_kwargs["mode"]) == ({"subject": ["shop_db"]}, "reschedule")
    dag.params.validate()
    assert dag.params.get_param("source").schema["enum"] == [None, "shop_db"]
    none = write_pipeline("bank")
    assert "snapshot" not in render(dag_specs(config.load(none), none)[0]).task_ids


def test_targets_are_verified_by_a_dag_of_their_own_that_nothing_starts_unless_the_file_says_so(
    write_pipeline: Callable[..., Path],
) -> None:
    file = write_pipeline("shop")
    spec = dag_specs(config.load(file), file)[-1]
    assert (spec.dag_id, spec.schedule) == ("cdc_shop_verify", None)
    dag = render(spec)
    for task, upstream in (("verify", set()), ("repair", {"verify"})):
        assert (dag.get_task(task).upstream_task_ids, dag.get_task(task).partial_kwargs["mode"]) == (
            upstream, "reschedule",
        )  # fmt: skip
        assert dag.get_task(task).expand_input.value == {"subject": ["main"]}
    # The failure of one target's verification must not stop the repair of another.
    assert dag.get_task("repair").trigger_rule == "all_done"
    dag.params.validate()
    assert dag.params["repair"] is False
    assert dag.params.get_param("target").schema["enum"] == [None, "main"]
    other = write_pipeline("bank", verify="schedule: '0 2 * * 0', mode: random, repair: true")
    scheduled = dag_specs(config.load(other), other)[-1]
    assert render(scheduled).params["repair"] is True
    assert (scheduled.schedule, scheduled.tags[1]) == ("0 2 * * 0", "lockstep:housekeeping")


def test_an_application_is_switched_by_a_dag_of_its_own_after_somebody_has_approved(
    write_pipeline: Callable[..., Path],
) -> None:
    file = write_pipeline("shop", cutover="switch_with: ./switch.sh")
    spec = dag_specs(config.load(file), file)[-1]
    assert (spec.dag_id, spec.schedule) == ("cdc_shop_cutover", None)
    dag = render(spec)
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "plan": set(), "rehearse": {"plan"}, "approve": {"rehearse"}, "switch": {"approve"}
    }  # fmt: skip
    # A rejection skips what is after it, and only that.
    assert [task.trigger_rule for task in dag.topological_sort()] == [
        "all_success", "none_failed", "none_failed", "all_success",
    ]  # fmt: skip
    dag.params.validate()
    assert (dag.params["direction"], dag.params["rehearse"], "target" in dag.params) == ("there", True, False)
    for found, said in (({"stopped_s": 1.46}, "for **1.5 s**"), (None, "not rehearsed")):
        ti = SimpleNamespace(xcom_pull=lambda task_ids, found=found: found)
        assert said in Template(dag.get_task("approve").body).render(ti=ti)
    assert "back?" in Template(dag.get_task("approve").subject).render(params={"direction": "back"})
    back = write_pipeline("shop_back", cutover="switch_with: ./switch.sh")
    assert not [back_spec for back_spec in dag_specs(config.load(back), back) if back_spec.dag_id.endswith("_cutover")]


def test_the_rendered_dag_has_the_order_of_the_specs(spec: Any, dag: Any) -> None:
    assert dag.dag_id == "cdc_shop"
    for task in spec.tasks:
        assert dag.get_task(task.task_id).upstream_task_ids == set(task.upstream)


def test_extract_is_mapped_over_the_sources_with_the_sensor_settings_of_the_file(spec: Any, dag: Any) -> None:
    extract = dag.get_task("extract")
    assert extract.is_mapped
    assert extract.expand_input.value == {"source": ["shop_db"]}
    kwargs = extract.partial_kwargs
    assert (kwargs["mode"], kwargs["poke_interval"], kwargs["file"]) == ("reschedule", 7, spec.file)


def test_runs_do_not_overlap_catch_up_or_retry_without_delay(dag: Any) -> None:
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    for task_id in ("plan", "merge", "to_main.commit"):
        task = dag.get_task(task_id)
        assert (task.retries, task.pool, bool(task.retry_exponential_backoff)) == (2, "cdc", True)
        assert task.retry_delay == timedelta(seconds=10)


@pytest.mark.parametrize("schedule", ["0 * * * *", "* * * * *", "*/15 * * * *", "30 2 * * *", "0 0 * * 1", "0 4 1 * *"])
def test_the_intervals_of_the_dag_are_the_windows_of_the_batches(
    write_pipeline: Callable[..., Path], schedule: str
) -> None:
    """The scheduler's own timetable, as it reads it from the stored DAG."""
    file = write_pipeline("shop", schedule=schedule)
    dag = render(dag_spec(config.load(file), file))
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    windows = Windows(schedule)
    chance = random.Random(7)
    for _ in range(50):
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**6 * 86400 * 365))
        start_us, end_us = windows.containing(to_us(moment))
        manual = timetable.infer_manual_data_interval(run_after=pendulum.instance(from_us(end_us)))
        assert (to_us(manual.start), to_us(manual.end)) == (start_us, end_us)
        following = timetable.next_dagrun_info(
            last_automated_data_interval=manual,
            restriction=TimeRestriction(earliest=None, latest=None, catchup=True),
        )
        assert following is not None
        assert to_us(following.data_interval.start) == end_us
        assert windows.containing(end_us)[1] == to_us(following.data_interval.end)
