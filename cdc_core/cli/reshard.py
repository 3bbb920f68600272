"""`lockstep reshard`: gives a target a new layout, before a cutover or after one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
    opened,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.cli.run import driver
from cdc_core.errors import Refused, UsageError
from cdc_core.extras import require
from cdc_core.stage.stores import open_stage
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.config import Pipeline, Target
    from cdc_core.meta import Cutover, Meta
    from cdc_core.reshard.fill import Filled
    from cdc_core.reshard.layout import NewLayout
    from cdc_core.reshard.successors import Part

app = typer.Typer(name="reshard", help="Give a target a new layout: 16 x 16 shards, say.", no_args_is_help=True)

LayoutOption = Annotated[str, typer.Option("--to", metavar="LAYOUT", help="Databases x tables in each, as in 16x16.")]
OldOption = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="The target that has the rows now; default: the only one."),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the new target; default: the old one's with the layout."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="TEMPLATE", help="Template of the new databases' names, as in 'shop16_{d:02d}'."
    ),
]
ConnectionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--connection", metavar="REF", help="Server of the new databases, once or once for each; default: the old one."
    ),
]
RowsOption = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="About how many staged rows each run takes.")
]

ShardsOption = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="0-7,12",
        help="After a cutover: only these former shards.",
    ),
]


@app.command()
def plan(
    pipeline: PipelineArgument,
    to: LayoutOption,
    target: OldOption = None,
    name: NameOption = None,
    database: DatabaseOption = None,
    connection: ConnectionOption = None,
    shards: ShardsOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show the target, or after a cutover the pipeline, that would be written, and what prevents it.

    \b
      lockstep reshard plan shop --to 16x16
      lockstep reshard plan shop --to 16x16 --database 'shop16_{d:02d}' --connection env:NEW

    Writes nothing.
    """
    output = CliOutput(as_json)
    asked = _asked(pipeline, pipelines, to, target, name, database, connection, shards)
    from cdc_core.meta import Meta

    with Meta.open(asked.pipeline.meta.url, asked.pipeline.pipeline) as meta:
        led = _led(meta, asked)
        if led is None:
            _before(meta, asked)
    text = asked.text if led is None else _successors(asked, led)[1]
    document = asked.document | {"writes": str(asked.path if led is None else asked.successor_file), "text": text}
    output.answer(document, Text(f"# {document['writes']}"), Text(text.rstrip()))


@app.command()
def run(
    pipeline: PipelineArgument,
    to: LayoutOption,
    target: OldOption = None,
    name: NameOption = None,
    database: DatabaseOption = None,
    connection: ConnectionOption = None,
    shards: ShardsOption = None,
    rows: RowsOption = 5_000_000,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Add a target with the new layout and fill it from the stage.

    \b
      lockstep reshard run shop --to 16x16

    Reads no row from the source or the old shards. After an interruption, the same command continues. After a cutover,
    it writes a pipeline whose sources are the shards and whose target is the new layout.
    """
    output = CliOutput(as_json)
    asked = _asked(pipeline, pipelines, to, target, name, database, connection, shards)
    from cdc_core.meta import Meta

    with Meta.open(asked.pipeline.meta.url, asked.pipeline.pipeline) as meta:
        led = _led(meta, asked)
        if led is None:
            _before(meta, asked)
        else:
            _write_successors(meta, asked, led, output)
    if led is None:
        _fill(asked, rows, output)


@app.command()
def status(
    pipeline: PipelineArgument,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="Only this target; may be repeated.")
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show how much of the staged history each target has, and whether runs feed it.

    \b
      lockstep reshard status shop
    """
    from cdc_core.meta import Meta
    from cdc_core.reshard.fill import filled

    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.targets], target, "target")
    found: list[dict[str, Any]] = []
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        for one in map(parsed.target, names):
            now = filled(meta, parsed, one.name)
            found.append(
                {
                    "target": one.name,
                    "layouts": sorted({rule.layout for rule in one.tables.values()}),
                    "batches": now.done,
                    "staged": now.batches,
                    "rows_to_apply": now.rows,
                    "fed_by_runs": not one.replay_only,
                }
            )
    shown = [
        (
            one["target"],
            "; ".join(one["layouts"]),
            f"{one['batches']:,} of {one['staged']:,}",
            f"{one['rows_to_apply']:,}",
            "yes" if one["fed_by_runs"] else "no: replay_only",
        )
        for one in found
    ]
    columns = ("target", "layout", "batches", "rows to apply", "fed by runs")
    output.answer({"targets": found}, table(f"targets: {parsed.pipeline}", columns, shown))


@dataclass(frozen=True)
class _Asked:
    """What a command was asked for. path: of the pipeline file."""

    path: Path
    pipeline: Pipeline
    old: Target
    new: NewLayout
    name: str
    made: dict[str, Any] | None
    """The new target, unless the file has it."""
    part: Part

    @property
    def target(self) -> Target:
        from cdc_core.config import Target

        return self.pipeline.target(self.name) if self.made is None else Target.model_validate(self.made)

    @property
    def text(self) -> str:
        from cdc_core.reshard.pipeline_file import target_text

        return target_text(self.made) if self.made is not None else ""

    def old_tables(self, led: Cutover) -> tuple[str, ...]:
        """The logical tables of the old target that the application was led to."""
        return tuple(one for one in led.details["tables"]["logical"] if self.old.table(one) is not None)

    @property
    def successor_file(self) -> Path:
        return self.path.with_name(f"{self.path.stem}_{self.new.name}{self.part.suffix}{self.path.suffix}")

    @property
    def document(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline.pipeline,
            "old_target": self.old.name,
            "new_target": self.name,
            "layout": self.new.name,
        }


def _asked(
    pipeline: str,
    pipelines: Path,
    to: str,
    target: str | None,
    name: str | None,
    database: str | None,
    connection: list[str] | None,
    shards: str | None,
) -> _Asked:
    from cdc_core.reshard.layout import NewLayout, new_name, new_target, parse_layout
    from cdc_core.reshard.successors import Part

    part = Part() if shards is None else Part.parse(shards)
    path, parsed = load_pipeline(pipeline, pipelines)
    new = NewLayout(*parse_layout(to), database, tuple(connection or ()))
    others = parsed.model_copy(update={"targets": tuple(one for one in parsed.targets if not _is(one, name, new))})
    old = others.one_target(target, "lockstep reshard")
    chosen = name or new_name(old.name, new)
    there = next((one for one in parsed.targets if one.name == chosen), None)
    if there is None:
        return _Asked(path, parsed, old, new, chosen, new_target(old, new, chosen), part)
    counts = {(rule.sharding.databases, rule.sharding.tables) for rule in there.tables.values() if rule.sharding}
    if counts != {(new.databases, new.tables)}:
        raise Refused(
            f"The target {chosen!r} has another layout than {new.name}.",
            where=f"targets.{chosen}",
            code="reshard.layout",
            remedy="give the new target another name with --name",
        )
    return _Asked(path, parsed, old, new, chosen, None, part)


def _is(one: Target, name: str | None, new: NewLayout) -> bool:
    """Whether a target may be the new one, which a former call has added."""
    return one.name == name if name is not None else one.name.endswith(f"_{new.name}")


def _led(meta: Meta, asked: _Asked) -> Cutover | None:
    """The cutover by which the application came to the old target; None if it writes to the sources.

    Raises Refused (cutover.other_open).
    """
    from cdc_core.cutover.states import State
    from cdc_core.target.sharding import shard_tables

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


def _before(meta: Meta, asked: _Asked) -> None:
    """Raises Refused (stage.partial, reshard.layout), UsageError (usage.argument)."""
    if asked.part.numbers is not None:
        raise UsageError(
            "The application writes to the sources: they have no shards that could be moved by themselves.",
            where="--shards",
            code="usage.argument",
            remedy="leave --shards out: before a cutover the whole target is filled from the stage",
        )
    from cdc_core.reshard.base import require_base
    from cdc_core.reshard.layout import require_apart

    tables = require_base(open_stage(asked.pipeline.stage), asked.pipeline, asked.target)
    others = [(one, tables) for one in asked.pipeline.targets if one.name != asked.name]
    require_apart(asked.target, tables, others, os.environ)


def _fill(asked: _Asked, rows: int, output: CliOutput) -> None:
    from cdc_core.config import load
    from cdc_core.reshard.fill import fill, filling
    from cdc_core.reshard.pipeline_file import add_target, let_in

    require("spark", "quality", by="lockstep reshard")

    def told(now: Filled) -> None:
        output.note(f"{asked.name}: has {now.done:,} of {counted(now.batches, 'batch')}; {now.rows:,} rows to apply")

    if asked.made is not None:
        add_target(asked.path, asked.made)
        output.note(f"{asked.path}: added the target {asked.name}")
    parsed = load(asked.path)
    with opened(parsed, output, bars=False) as ready, driver(parsed, ready.store) as spark, filling(ready, asked.name):
        now = fill(ready, spark, asked.name, rows, told)
        let_in(asked.path, asked.name)
    document = asked.document | {"batches": now.batches, "fed_by_runs": True}
    output.answer(
        document,
        Text(f"{asked.name} has everything that is staged, and every run of {parsed.pipeline} feeds it from now on."),
        Text(f"next: lockstep run {asked.path.stem}; lockstep verify {asked.path.stem} --target {asked.name}"),
    )


def _successors(asked: _Asked, led: Cutover) -> tuple[str, str]:
    """The name of the pipeline that moves the former shards, and its file."""
    from cdc_core.config import parse
    from cdc_core.reshard.layout import require_apart
    from cdc_core.reshard.successors import successor_document, successor_text

    logicals = asked.old_tables(led)
    document = successor_document(asked.pipeline, asked.old, asked.new, logicals, asked.name, asked.part, os.environ)
    text = successor_text(asked.pipeline, asked.old, document)
    made = parse(text, where=str(asked.successor_file))
    (target,) = made.targets
    require_apart(target, target.tables, [(one, logicals) for one in asked.pipeline.targets], os.environ)
    return made.pipeline, text


def _require_unmoved(meta: Meta, asked: _Asked, led: Cutover, successor: str) -> None:
    """The application has not been led on from any of the shards by another pipeline: the fences let the way back of
    one pipeline through. Raises Refused (cutover.left_before)."""
    from cdc_core.config import WAY_BACK_SUFFIX
    from cdc_core.cutover.states import State
    from cdc_core.target.fence import let_through_by

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


def _write_successors(meta: Meta, asked: _Asked, led: Cutover, output: CliOutput) -> None:
    from cdc_core.config import WAY_BACK_SUFFIX
    from cdc_core.cutover.work import pair_of
    from cdc_core.target.fence import let_through

    made, text = _successors(asked, led)
    file = asked.successor_file
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{file} is there already, and is another pipeline.",
            where=str(file),
            code="usage.output_file",
            remedy="if it is the pipeline of this move, and was changed on purpose, run it; else remove it",
        )
    _require_unmoved(meta, asked, led, made)
    owner = pair_of(led.pipeline, led.way_back)
    let_through(asked.old, asked.old_tables(led), made + WAY_BACK_SUFFIX, owner, asked.part.has)
    if not file.exists():
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    output.answer(
        asked.document | {"file": str(file), "successor": made},
        Text(f"{file}: the shards of {asked.old.name} are its sources; its target is {asked.name}."),
        Text(f"next: lockstep run {file.stem}; lockstep verify {file.stem}"),
        Text(
            f"then name in it the command that leads the application to the new shards (cutover.switch_with: that of "
            f"{asked.path.name} leads to the former ones), and lockstep cutover run {file.stem}"
        ),
    )
