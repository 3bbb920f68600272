"""The layouts that a run writes under, compared with those that its targets' rows were written under."""

from __future__ import annotations

from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.model.run import RunPlan


def layouts_of(pipeline: Pipeline, plan: RunPlan) -> dict[str, dict[str, str]]:
    """By target and logical table, of what the plan writes."""
    found: dict[str, dict[str, str]] = {}
    for one in plan.targets:
        target = pipeline.target(one.target)
        for table in plan.merge_set(one.merge_set).tables:
            rule = target.table(table.table)
            if rule is not None and table.files:
                found.setdefault(target.name, {})[table.table] = rule.layout
    return found


def require_layouts(meta: Meta, pipeline: Pipeline, plan: RunPlan) -> None:
    """A pipeline file may change between a run's plan and its other tasks. Raises DataAtRisk (target.layout)."""
    for target, layouts in layouts_of(pipeline, plan).items():
        meta.require_layouts(target, layouts)


def note_layouts(meta: Meta, pipeline: Pipeline, plan: RunPlan, target: str) -> None:
    """Before the first row of a run is written to a target. Raises DataAtRisk (target.layout)."""
    meta.note_layouts(target, layouts_of(pipeline, plan).get(target, {}))
