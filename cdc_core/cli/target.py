"""`lockstep target`: the tables of targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetsOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, print_error, table
from cdc_core.errors import DataAtRisk, LockstepError, Refused, UsageError, combined, to_document
from cdc_core.model.readable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.config import Pipeline, Target
    from cdc_core.operations.target_tables import CapturedTables
    from cdc_core.targets.tables.make_tables import MadeTable

app = typer.Typer(name="target", help="Create and compare the tables of targets.", no_args_is_help=True)


@app.command()
def create(
    pipeline: PipelineArgument,
    target: TargetsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the statements; execute none.")] = False,
    alter: Annotated[
        bool, typer.Option("--alter", help="Also add columns to existing tables, and widen their types.")
    ] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Create the databases and tables that targets lack, and compare those that exist.

    \b
      lockstep target create shop --dry-run
      lockstep target create shop --target shards --alter

    Every shard gets the source's current definition, without what would change or refuse rows by itself
    (AUTO_INCREMENT, triggers, foreign keys, CHECK, partitions). Exit code 3: a table still cannot be written.
    """
    from cdc_core.operations.target_tables import create as create_tables
    from cdc_core.operations.target_tables import source_tables
    from cdc_core.targets.tables.make_tables import Actions

    output = CliOutput(as_json)
    path, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.targets], target, "target")
    if not names:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(path),
            code="usage.argument",
            remedy="add one to `targets`",
        )
    tables = source_tables(parsed, os.environ)
    results: dict[str, list[MadeTable]] = {}
    for name in names:
        chosen = parsed.target(name)
        with _progress(output, name, _count(chosen, tables)) as made:
            results[name] = create_tables(
                parsed, chosen, tables, Actions(alter=alter, dry=dry_run), environ=os.environ, made=made
            )
    document = {
        "pipeline": parsed.pipeline,
        "dry_run": dry_run,
        "targets": {name: [_described(one) for one in found] for name, found in results.items()},
        "left_out": dict(sorted(tables.problems.items())),
    }
    shown: list[RenderableType] = []
    for name, found in results.items():
        shown += _shown(name, found, dry_run=dry_run)
    shown += [Text(f"left out: {name}: {why}") for name, why in sorted(tables.problems.items())]
    output.answer(document, *shown)
    errors = [error for found in results.values() for one in found for error in _errors(one)]
    if errors:
        worst = combined(errors)
        if not as_json:
            print_error(worst, as_json=False)
        raise typer.Exit(worst.exit_code)


@app.command()
def layout(
    pipeline: PipelineArgument,
    target: TargetsOption = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="TABLE", help="Accept the current layout of this table; may be repeated."),
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show the sharding under which each table was written, and the pipeline's current one.

    \b
      lockstep target layout shop
      lockstep target layout shop --target shards --accept orders

    Where the two differ, runs are refused (target.layout). Accept a table whose rows were moved, that is empty, or
    whose shard key was renamed.
    """
    from cdc_core.meta import Meta
    from cdc_core.operations.apply.lost_writes import accept_moved
    from cdc_core.targets.bookkeeping.placement import accept_placements, placements

    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.targets], target, "target")
    rows: list[tuple[str, str, str, str]] = []
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        # A meta database that was rebuilt knows what is staged, and not what was written.
        covered = [one for source in parsed.sources for one in meta.coverages.find(source.name).tables.values()]
        fed = {logical for one in covered for logical in one.feeds}
        for name in names:
            rules, known = parsed.target(name), meta.layouts.find(name)
            tables = [one for one in {*known, *fed, *rules.tables} - {"*"} if rules.table(one) is not None]
            found = placements(rules, sorted(tables))
            there = {*known, *(one.logical for one in found if one.noted is not None)}
            now = {one: rule.layout for one in there if (rule := rules.table(one)) is not None}
            if accept:
                accepted = choose(sorted(now), accept, "table")
                accept_placements(rules, accepted, lambda one: output.note(f"accepted {one}"))
                meta.layouts.accept(name, {one: now[one] for one in accepted})
                accept_moved(meta, rules, accepted)
                found, known = placements(rules, sorted(tables)), meta.layouts.find(name)
            rows += [(name, one, known.get(one, ""), now.get(one, "")) for one in sorted(there)]
            rows += [
                (name, one.name, one.noted, one.wanted)
                for one in found
                if one.noted is not None and one.noted != one.wanted
            ]
    columns = ("target", "table", "written by", "the pipeline says")
    document = {"layouts": [dict(zip(("target", "table", "written", "now"), row, strict=True)) for row in rows]}
    output.answer(document, table(f"layouts: {parsed.pipeline}", columns, rows))


@app.command()
def fence(
    pipeline: PipelineArgument,
    target: TargetsOption = None,
    table_names: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Only this logical table; may be repeated.",
        ),
    ] = None,
    note: Annotated[
        str | None, typer.Option("--raise", metavar="WHY", help="Keep Lockstep's writes out; errors show this reason.")
    ] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Let Lockstep write again.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show, raise or lower fences, which keep Lockstep's writes out of tables of a target.

    \b
      lockstep target fence shop --target shards --raise "the application writes here since 12:00"
      lockstep target fence shop --target shards --table orders --lower

    Once --raise has returned, no run, replay or repair of any pipeline writes to the tables (target.fenced). Raise
    fences before an application writes there by itself. The same command finishes one that was interrupted.
    """
    from cdc_core.targets.bookkeeping.fence import FencedTable, fences, lower_fences, raise_fences

    if note is not None and (lower or not note.strip()):
        raise UsageError(
            "A fence is raised, with the reason why, or lowered.",
            where="lockstep target fence",
            code="usage.argument",
            remedy="give --raise WHY, or --lower, or neither to see which fences there are",
        )
    output = CliOutput(as_json)
    path, parsed = load_pipeline(pipeline, pipelines)
    rows: list[tuple[str, FencedTable]] = []
    for name in choose([one.name for one in parsed.targets], target, "target"):
        chosen = parsed.target(name)
        tables = choose(_written(parsed, chosen), table_names, "table")
        if not tables and (lower or note is not None):
            raise UsageError(
                f"No run of this pipeline has written to a table of the target {name!r}: there is nothing to fence.",
                where=str(path),
                code="usage.argument",
                remedy="raise fences after the first run; or name other targets with --target",
            )
        if note is not None:
            why, more = " ".join(note.split()), tables
            while more:
                raise_fences(chosen, more, why, lambda one: output.note(f"fenced {one.name}"))
                # While it waited for a write to end, a run may have begun with a table that none had written before.
                more = [] if table_names else [one for one in _written(parsed, chosen) if one not in tables]
                tables = [*tables, *more]
        elif lower:
            lower_fences(chosen, tables, lambda one: output.note(f"no fence around {one.name}"))
        rows += [(name, one) for one in fences(chosen, tables)]
    columns = ("target", "table", "shard", "fence")
    shown = [(name, one.logical, one.name, one.note) for name, one in rows]
    output.answer(
        {"fences": [dict(zip(columns, row, strict=True)) for row in shown]},
        table(f"fences: {parsed.pipeline}", columns, [(*place, why or "") for *place, why in shown]),
    )


def _written(pipeline: Pipeline, target: Target) -> list[str]:
    """The logical tables of the target that runs of the pipeline have written, or are about to write."""
    from cdc_core.meta import Meta

    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        known = sorted({*meta.layouts.find(target.name), *meta.writes.last(target.name)})
    return [one for one in known if target.table(one) is not None]


@app.command("check-ids")
def check_ids(
    pipeline: PipelineArgument,
    target: TargetsOption = None,
    table_names: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only this logical table; may be repeated.")
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Look for values of unique keys that two shards have, and for counters that give out equal ids.

    \b
      lockstep target check-ids shop
      lockstep target check-ids shop --target shards --table orders

    Rows that share such a value could not be carried back to one table. Exit code 4: a value is in two shards.
    """
    from cdc_core.meta import Meta
    from cdc_core.targets.reading.sharding import shard_tables
    from cdc_core.targets.tables.auto_increment import check_ids as checked
    from cdc_core.targets.tables.auto_increment import meeting_counters

    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    rows: list[dict[str, Any]] = []
    counters: list[dict[str, Any]] = []
    for name in choose([one.name for one in parsed.targets], target, "target"):
        chosen = parsed.target(name)
        with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
            written = [one for one in meta.layouts.find(name) if chosen.table(one) is not None]
        for logical in choose(written, table_names, "table"):
            output.note(f"{name}: {logical}")
            rows += [
                {
                    "target": name,
                    "table": logical,
                    "key": list(one.key),
                    "rows": one.rows,
                    "shared": one.found,
                    "values": [{"value": list(value.value), "tables": list(value.tables)} for value in one.shown],
                }
                for one in checked(chosen, logical, os.environ)
            ]
            places = [
                (chosen.connections[at.connection], at.database, at.table) for at in shard_tables(chosen, logical)
            ]
            if meeting := meeting_counters(places, os.environ):
                counters.append({"target": name, "table": logical, "tables": list(meeting)})
    columns = ("target", "table", "key", "rows", "in two shards")
    shown = [(one["target"], one["table"], ", ".join(one["key"]), f"{one['rows']:,}", one["shared"]) for one in rows]
    output.answer(
        {"keys": rows, "counters": counters},
        table(f"unique keys without the shard key: {parsed.pipeline}", columns, shown),
        *(
            Text(f"{one['table']}: {', '.join(value['value'])} is in {' and '.join(value['tables'])}")
            for one in rows
            for value in one["values"]
        ),
        *(
            Text(f"{one['table']}: AUTO_INCREMENT of {counted(len(one['tables']), 'table')} gives out equal ids")
            for one in counters
        ),
    )
    shared = [one for one in rows if one["shared"]]
    if shared:
        first = shared[0]
        error = DataAtRisk(
            f"{counted(first['shared'], 'value')} of the key ({', '.join(first['key'])}) of {first['table']!r} "
            f"{'is' if first['shared'] == 1 else 'are'} in two shards.",
            where=f"targets.{first['target']}.tables.{first['table']}",
            code="target.unique_conflict",
            remedy="give one of the two rows another id; let ids come from the application (a sequence, a snowflake, a "
            "range for each shard)",
        )
        if not as_json:
            print_error(error, as_json=False)
        raise typer.Exit(error.exit_code)


def _count(target: Target, tables: CapturedTables) -> int:
    from cdc_core.targets.reading.sharding import shard_tables

    return sum(len(shard_tables(target, logical)) for logical in tables.origins if target.table(logical) is not None)


def _errors(one: MadeTable) -> Iterator[LockstepError]:
    if one.error is not None:
        yield one.error
    for difference, statement in one.differences:
        if difference.stops:
            yield Refused(
                f"{one.name}: {difference.what}.",
                where=one.name,
                code="target.definition",
                remedy=statement or "change the table by hand, so that it takes the source's rows",
            )


def _described(one: MadeTable) -> dict[str, Any]:
    return {
        "logical": one.logical,
        "table": one.name,
        "state": one.state,
        "statements": list(one.statements),
        "differences": [
            {"what": difference.what, "stops": difference.stops, "statement": statement}
            for difference, statement in one.differences
        ],
        "notes": list(one.notes),
        "error": to_document(one.error)["error"] if one.error else None,
    }


def _shown(name: str, found: list[MadeTable], *, dry_run: bool) -> Iterator[RenderableType]:
    count = {state: sum(one.state == state for one in found) for state in ("created", "altered", "exists", "missing")}
    said: set[tuple[str, str]] = set()
    for one in found:
        if dry_run:
            yield from (Text(f"{statement};") for statement in one.statements)
        lines = [f"note: {note}" for note in one.notes] if one.state in ("created", "missing") else []
        lines += [
            f"{'stops' if difference.stops else 'differs'}: {difference.what}" + (f": {statement}" if statement else "")
            for difference, statement in one.differences
        ]
        for line in lines:
            if (one.logical, line) not in said:  # once for all shards
                said.add((one.logical, line))
                yield Text(f"-- {one.name}: {line}", style="dim" if line.startswith("note") else "")
    words = [f"{number:,} {'to create' if state == 'missing' else state}" for state, number in count.items() if number]
    yield Text(f"{'-- ' if dry_run else ''}target {name}: {counted(len(found), 'table')}: {', '.join(words) or 'none'}")


@contextmanager
def _progress(output: CliOutput, name: str, total: int) -> Iterator[Callable[[MadeTable], None]]:
    if not output.animated:
        yield lambda one: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=output.err, transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda one: progress.update(task, advance=1, description=one.name)
