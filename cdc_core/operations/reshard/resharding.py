"""Gives a target a new layout, filled from the stage; after a cutover, by a pipeline that moves the shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdc_core.config import WAY_BACK_SUFFIX, Pipeline, Target, load, parse
from cdc_core.errors import Refused, UsageError
from cdc_core.meta import Cutover, Meta
from cdc_core.model.readable import counted
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.work import pair_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.reshard.base import require_base
from cdc_core.operations.reshard.fill import fill, filling
from cdc_core.operations.reshard.new_layout import NewLayout, new_name, new_target, parse_layout, require_apart
from cdc_core.operations.reshard.pipeline_file import add_target, let_in, target_text
from cdc_core.operations.reshard.successors import ShardPart, successor_document, successor_text
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.bookkeeping.fence import let_through, let_through_by
from cdc_core.targets.reading.sharding import shard_tables

ROWS = 5_000_000
"""About how many staged rows each run of a fill takes."""


@dataclass(frozen=True, slots=True)
class Resharding:
    """What is asked for. file: the pipeline's. name: of the new target. made: that target, unless the file has it.
    part: which former shards are moved."""

    file: Path
    pipeline: Pipeline
    old: Target
    new: NewLayout
    name: str
    made: dict[str, Any] | None
    part: ShardPart

    @classmethod
    def of(
        cls,
        file: Path,
        pipeline: Pipeline,
        layout: str,
        *,
        target: str | None = None,
        name: str | None = None,
        database: str | None = None,
        connections: Sequence[str] = (),
        shards: str | None = None,
    ) -> Resharding:
        """layout: databases x tables in each, as in 16x16. target: that has the rows now; None for the only one.

        Raises UsageError (usage.argument), Refused (reshard.layout).
        """
        part = ShardPart() if shards is None else ShardPart.parse(shards)
        new = NewLayout(*parse_layout(layout), database, tuple(connections))
        others = tuple(one for one in pipeline.targets if not _may_be_new(one, name, new))
        old = pipeline.model_copy(update={"targets": others}).one_target(target, "lockstep reshard")
        chosen = name or new_name(old.name, new)
        there = next((one for one in pipeline.targets if one.name == chosen), None)
        if there is None:
            return cls(file, pipeline, old, new, chosen, new_target(old, new, chosen), part)
        counts = {(rule.sharding.databases, rule.sharding.tables) for rule in there.tables.values() if rule.sharding}
        if counts != {(new.databases, new.tables)}:
            raise Refused(
                f"The target {chosen!r} has another layout than {new.name}.",
                where=f"targets.{chosen}",
                code="reshard.layout",
                remedy="give the new target another name with --name",
            )
        return cls(file, pipeline, old, new, chosen, None, part)

    @property
    def target(self) -> Target:
        return self.pipeline.target(self.name) if self.made is None else Target.model_validate(self.made)

    def old_tables(self, led: Cutover) -> tuple[str, ...]:
        """The logical tables of the old target that the application was led to."""
        return tuple(one for one in led.details["tables"]["logical"] if self.old.table(one) is not None)

    @property
    def successor_file(self) -> Path:
        return self.file.with_name(f"{self.file.stem}_{self.new.name}{self.part.suffix}{self.file.suffix}")

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline.pipeline,
            "old_target": self.old.name,
            "new_target": self.name,
            "layout": self.new.name,
        }


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The file that would be written, and what."""

    asked: Resharding
    writes: Path
    text: str

    def to_json(self) -> dict[str, Any]:
        return self.asked.to_json() | {"writes": str(self.writes), "text": self.text}


@dataclass(frozen=True, slots=True)
class ReshardReport:
    """batches: staged ones, which the new target has. After a cutover, successor: the pipeline that moves the shards,
    and its file."""

    asked: Resharding
    batches: int = 0
    successor: str = ""
    file: Path | None = None

    def to_json(self) -> dict[str, Any]:
        if self.file is not None:
            return self.asked.to_json() | {"file": str(self.file), "successor": self.successor}
        return self.asked.to_json() | {"batches": self.batches, "fed_by_runs": True}


def plan(opened: OpenPipeline, asked: Resharding) -> ReshardPlan:
    """What `reshard` would write. Raises what prevents it, as `reshard` does."""
    led = _led(opened.meta, asked)
    if led is not None:
        return ReshardPlan(asked, asked.successor_file, _successor(opened, asked, led)[1])
    _require_fillable(opened, asked)
    return ReshardPlan(asked, asked.file, target_text(asked.made) if asked.made is not None else "")


def reshard(
    opened: OpenPipeline,
    asked: Resharding,
    spark: Callable[[Pipeline, ObjectStore], AbstractContextManager[Spark]],
    rows: int = ROWS,
) -> ReshardReport:
    """Adds the target to the pipeline file and fills it from the stage; after a cutover, writes the pipeline that moves
    the shards. A repeated call continues.

    rows: about how many each run of the fill takes. Raises UsageError (usage.argument, usage.output_file), Refused
    (cutover.other_open, cutover.left_before, stage.partial, reshard.layout), RetryLater (lease.held), and what runs
    raise.
    """
    led = _led(opened.meta, asked)
    if led is not None:
        return _write_successor(opened, asked, led)
    _require_fillable(opened, asked)
    note = opened.progress.note
    if asked.made is not None:
        add_target(asked.file, asked.made)
        note(f"{asked.file}: added the target {asked.name}")
    fed = replace(opened, pipeline=load(asked.file))
    with spark(fed.pipeline, fed.store) as driver, filling(fed, asked.name):
        now = fill(
            fed, driver, asked.name, rows,
            lambda now: note(
                f"{asked.name}: has {now.done:,} of {counted(now.batches, 'batch')}; {now.rows:,} rows to apply"
            ),
        )  # fmt: skip
        let_in(asked.file, asked.name)
    return ReshardReport(asked, now.batches)


def _may_be_new(target: Target, name: str | None, new: NewLayout) -> bool:
    """Whether a target may be the new one, which a former call has added."""
    return target.name == name if name is not None else target.name.endswith(f"_{new.name}")


def _led(meta: Meta, asked: Resharding) -> Cutover | None:
    """The cutover by which the application came to the old target; None if it writes to the sources.

    Raises Refused (cutover.other_open).
    """
    found = meta.cutovers.latest(asked.pipeline.pipeline)
    if found is None or found.state in (State.BACK, State.ROLLED_BACK):
        return None
    if found.state not in (State.SWITCHED, State.WATCH, State.COMPLETE):
        raise Refused(
            f"A cutover of {found.pipeline!r} is open: it is {found.state}.",
            where=found.pipeline,
            code="cutover.other_open",
            remedy=f"let it end, or end it (`lockstep cutover abort {found.pipeline}`); then begin again",
        )
    led_to = {
        (reference, database, name)
        for reference, tables in found.details["tables"]["targets"].items()
        for database, name in tables
    }
    for logical in found.details["tables"]["logical"]:
        for place in shard_tables(asked.old, logical) if asked.old.table(logical) is not None else ():
            if (asked.old.connections[place.connection], place.database, place.table) not in led_to:
                raise Refused(
                    f"The application was led to other tables than those of {asked.old.name!r}.",
                    where=f"targets.{asked.old.name}",
                    code="cutover.other_open",
                    remedy="name the target to which it was led with --target",
                )
    return found


def _require_fillable(opened: OpenPipeline, asked: Resharding) -> None:
    """Raises Refused (stage.partial, reshard.layout), UsageError (usage.argument)."""
    if asked.part.numbers is not None:
        raise UsageError(
            "The application writes to the sources: they have no shards that could be moved by themselves.",
            where="--shards",
            code="usage.argument",
            remedy="leave --shards out: before a cutover the whole target is filled from the stage",
        )

    tables = require_base(opened.store, asked.pipeline, asked.target)
    others = [(one, tables) for one in asked.pipeline.targets if one.name != asked.name]
    require_apart(asked.target, tables, others, opened.environ)


def _successor(opened: OpenPipeline, asked: Resharding, led: Cutover) -> tuple[str, str]:
    """The name of the pipeline that moves the former shards, and its file."""
    logicals = asked.old_tables(led)
    document = successor_document(
        asked.pipeline, asked.old, asked.new, logicals, asked.name, asked.part, opened.environ
    )
    text = successor_text(asked.pipeline, asked.old, document)
    made = parse(text, where=str(asked.successor_file))
    (target,) = made.targets
    require_apart(target, target.tables, [(one, logicals) for one in asked.pipeline.targets], opened.environ)
    return made.pipeline, text


def _require_unmoved(meta: Meta, asked: Resharding, led: Cutover, successor: str) -> None:
    """The application has not been led on from any of the shards by another pipeline: the fences let the way back of
    one pipeline through. Raises Refused (cutover.left_before)."""
    passing = let_through_by(asked.old, asked.old_tables(led), asked.part.has)
    for other in sorted({one.removesuffix(WAY_BACK_SUFFIX) for one in passing} - {successor}):
        found = meta.cutovers.latest(other)
        if found is not None and found.state not in (State.BACK, State.ROLLED_BACK):
            raise Refused(
                f"Another pipeline, {other!r}, has led the application on from some of these shards, or is about to.",
                where=asked.pipeline.pipeline,
                code="cutover.left_before",
                remedy=f"name shards that {other!r} does not move (--shards); or lead its shards back first",
            )


def _write_successor(opened: OpenPipeline, asked: Resharding, led: Cutover) -> ReshardReport:
    made, text = _successor(opened, asked, led)
    file = asked.successor_file
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{file} is there already, and is another pipeline.",
            where=str(file),
            code="usage.output_file",
            remedy="if it is the pipeline of this move, and was changed on purpose, run it; else remove it",
        )
    _require_unmoved(opened.meta, asked, led, made)
    owner = pair_of(led.pipeline, led.way_back)
    let_through(asked.old, asked.old_tables(led), made + WAY_BACK_SUFFIX, owner, asked.part.has)
    if not file.exists():
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    return ReshardReport(asked, successor=made, file=file)
