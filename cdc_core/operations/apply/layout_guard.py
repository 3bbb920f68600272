"""The layouts that a run writes under: those of its plan, of the pipeline file, and of its targets' rows are the same.

Each plan records them. A pipeline file may change between two tasks of a run: filter sorts the rows by shard, and write
puts them there, so that a task under another layout is refused. Meta has the layouts under which rows were written.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc_core.config import Target
from cdc_core.errors import Refused
from cdc_core.model.run_plan import RunPlan
from cdc_core.operations.open_pipeline import OpenPipeline


def planned_layouts(plan: RunPlan) -> dict[str, Mapping[str, str]]:
    """By target and logical table."""
    return {one.target: one.layouts for one in plan.targets}


def require_planned(target: Target, plan: RunPlan) -> None:
    """Raises Refused (run.clear_task) where the rules of a target are not those that the run was planned by."""
    for table, planned in sorted(plan.target(target.name).layouts.items()):
        rule = target.table(table)
        if rule is None or rule.layout != planned:
            raise Refused(
                f"The run was planned for {table!r} as {planned}; the pipeline file now has "
                f"{rule.layout if rule is not None else 'no rule for it'}.",
                where=f"targets.{target.name}.tables.{table}.sharding",
                code="run.clear_task",
                remedy="restore the pipeline file; or clear the run from its plan task on; without Airflow, start "
                "another run, which takes its batches",
            )


def require_layouts(opened: OpenPipeline, plan: RunPlan) -> None:
    """Raises DataAtRisk (target.layout), and what require_planned raises."""
    for name, layouts in planned_layouts(plan).items():
        require_planned(opened.pipeline.target(name), plan)
        opened.meta.layouts.require(name, layouts)


def note_layouts(opened: OpenPipeline, plan: RunPlan, target: str) -> None:
    """Before the first row of a run is written to a target. Raises as require_layouts."""
    require_planned(opened.pipeline.target(target), plan)
    opened.meta.layouts.note(target, plan.target(target).layouts)
