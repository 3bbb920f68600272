"""`lockstep target`: the tables of targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import TablesOption, TargetsOption
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import LockstepError, Refused, UsageError, combined, to_document
from cdc_core.model.choices import choose
from cdc_core.model.readable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.config import MysqlTarget
    from cdc_core.targets.tables.make_tables import MadeTable

app = typer.Typer(name="target", help="Create and compare the tables of targets.", no_args_is_help=True)


@pipeline_command(app)
def create(
    call: PipelineCall,
    target: TargetsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the statements; execute none.")] = False,
    alter: Annotated[
        bool, typer.Option("--alter", help="Also add columns to existing tables, and widen their types.")
    ] = False,
) -> None:
    """Create the databases and tables that targets lack, and compare those that exist.

    \b
      lockstep target create shop --dry-run
      lockstep target create shop --target shards --alter

    Every shard gets the source's current definition, without what would change or refuse rows by itself
    (AUTO_INCREMENT, triggers, foreign keys, CHECK, partitions). Exit code 3: a table still cannot be written.
    """
    from cdc_core.cli.terminal_progress import TerminalProgress
    from cdc_core.config import IcebergTarget
    from cdc_core.operations.target_tables import create as create_tables
    from cdc_core.operations.target_tables import source_tables
    from cdc_core.targets.tables.make_tables import Actions

    parsed, names = call.pipeline, call.targets(target)
    if not names:
        raise UsageError(
            "The pipeline has no targets.",
            where=str(call.path),
            code="usage.argument",
            remedy="add one to `targets`",
        )
    tables = source_tables(parsed)
    results: dict[str, list[MadeTable]] = {}
    for name in names:
        chosen = parsed.target(name)
        with TerminalProgress(call.output) as progress:
            progress.step(name)
            if isinstance(chosen, IcebergTarget):
                from cdc_core.operations.lake.mirror_tables import create_mirrors

                schemas = {logical: [each.schema for each in origins] for logical, origins in tables.origins.items()}
                results[name] = create_mirrors(parsed, chosen, schemas, dry=dry_run)
                continue
            results[name] = create_tables(
                parsed, chosen, tables, Actions(alter=alter, dry=dry_run), made=lambda table: progress.step(table.name)
            )
    document = {
        "dry_run": dry_run,
        "targets": {name: [_described(table) for table in made] for name, made in results.items()},
        "left_out": dict(sorted(tables.problems.items())),
    }
    shown: list[RenderableType] = []
    for name, made in results.items():
        shown += _shown(name, made, dry_run=dry_run)
    shown += [Text(f"left out: {name}: {why}") for name, why in sorted(tables.problems.items())]
    call.answer(document, *shown)
    errors = [error for made in results.values() for table in made for error in _errors(table)]
    call.output.leave(combined(errors) if errors else None)


@pipeline_command(app)
def layout(
    call: PipelineCall,
    target: TargetsOption = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="TABLE", help="Accept the current layout of this table; may be repeated."),
    ] = None,
) -> None:
    """Show the sharding under which each table was written, and the pipeline's current one.

    \b
      lockstep target layout shop
      lockstep target layout shop --target shards --accept orders

    Where the two differ, runs are refused (target.layout). Accept a table whose rows were moved, that is empty, or
    whose shard key was renamed.
    """
    from cdc_core.operations.apply.lost_writes import accept_moved
    from cdc_core.targets.bookkeeping.placement import accept_placements
    from cdc_core.targets.bookkeeping.table_states import states

    layouts: list[dict[str, Any]] = []
    for name in call.databases(target):
        rules = call.pipeline.database(name)
        written = _written(call, rules)
        if accept:
            accepted = choose(written, accept, "table", "--accept")
            accept_placements(rules, accepted, lambda table: call.output.note(f"accepted {table}"))
            with call.meta() as meta:
                accept_moved(meta, rules, accepted)
        layouts += [
            {"target": name, "table": place.name, "written": state.placement, "now": place.placement}
            for _, place, state in states(rules, written)
            if state.placement is not None
        ]
    title = f"layouts: {call.pipeline.pipeline}"
    call.output.answer({"layouts": layouts}, listing(title, layouts, "target table written now"))


@pipeline_command(app)
def fence(
    call: PipelineCall,
    target: TargetsOption = None,
    table_names: TablesOption = None,
    note: Annotated[
        str | None, typer.Option("--raise", metavar="WHY", help="Keep Lockstep's writes out; errors show this reason.")
    ] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Let Lockstep write again.")] = False,
) -> None:
    """Show, raise or lower fences, which keep Lockstep's writes out of tables of a target.

    \b
      lockstep target fence shop --target shards --raise "the application writes here since 12:00"
      lockstep target fence shop --target shards --table orders --lower

    Once --raise has returned, no run, replay or repair of any pipeline writes to the tables (target.fenced). Raise
    fences before an application writes there by itself. The same command finishes one that was interrupted.
    """
    from cdc_core.targets.bookkeeping.fence import lower_fences, raise_fences
    from cdc_core.targets.bookkeeping.table_states import states

    if note is not None and (lower or not note.strip()):
        raise UsageError(
            "Raise a fence with a reason, or lower it.",
            where="lockstep target fence",
            code="usage.argument",
            remedy="give --raise WHY, or --lower, or neither to see which fences there are",
        )
    found: list[dict[str, Any]] = []
    for name in call.databases(target):
        chosen = call.pipeline.database(name)
        tables = choose(_written(call, chosen), table_names, "table", "--table")
        if not tables and (lower or note is not None):
            raise UsageError(
                f"No run of this pipeline has written to a table of the target {name!r}: there is nothing to fence.",
                where=str(call.path),
                code="usage.argument",
                remedy="raise fences after the first run; or name other targets with --target",
            )
        if note is not None:
            why, more = " ".join(note.split()), tables
            while more:
                raise_fences(chosen, more, why, lambda table: call.output.note(f"fenced {table}"))
                # While it waited for a write to end, a run may have begun with a table that none had written before.
                more = [] if table_names else [table for table in _written(call, chosen) if table not in tables]
                tables = [*tables, *more]
        elif lower:
            lower_fences(chosen, tables, lambda table: call.output.note(f"no fence around {table}"))
        found += [
            {"target": name, "table": logical, "shard": place.name, "fence": state.fence.note if state.fence else None}
            for logical, place, state in states(chosen, tables)
        ]
    title = f"fences: {call.pipeline.pipeline}"
    call.output.answer({"fences": found}, listing(title, found, "target table shard fence"))


def _written(call: PipelineCall, target: MysqlTarget) -> list[str]:
    """The logical tables of the target that runs of the pipeline have written, or are about to write: by meta, and by
    what is noted at the target, as meta may have been rebuilt."""
    from cdc_core.operations.check.check_targets import is_named
    from cdc_core.targets.bookkeeping.table_states import NOTHING, states

    with call.meta() as meta:
        written = set(meta.writes.last(target.name))
        covered = [table for name in call.sources(None) for table in meta.coverages.find(name).tables.values()]
    fed = {*target.tables, *(logical for coverage in covered for logical in coverage.feeds)} - written - {"*"}
    asked = [logical for logical in fed if target.table(logical) is not None and is_named(target, logical)]
    written |= {logical for logical, _, state in states(target, asked) if state != NOTHING}
    return sorted(logical for logical in written if target.table(logical) is not None)


def _errors(table: MadeTable) -> Iterator[LockstepError]:
    if table.error is not None:
        yield table.error
    for difference, statement in table.differences:
        if difference.stops:
            yield Refused(
                f"{table.name}: {difference.what}.",
                where=table.name,
                code="target.definition",
                remedy=statement or "change the table by hand, so that it takes the source's rows",
            )


def _described(table: MadeTable) -> dict[str, Any]:
    return {
        "logical": table.logical,
        "table": table.name,
        "state": table.state,
        "statements": list(table.statements),
        "differences": [
            {"what": difference.what, "stops": difference.stops, "statement": statement}
            for difference, statement in table.differences
        ],
        "notes": list(table.notes),
        "error": to_document(table.error)["error"] if table.error else None,
    }


def _shown(name: str, tables: list[MadeTable], *, dry_run: bool) -> Iterator[RenderableType]:
    count = {
        state: sum(table.state == state for table in tables) for state in ("created", "altered", "exists", "missing")
    }
    said: set[tuple[str, str]] = set()
    for table in tables:
        if dry_run:
            yield from (Text(f"{statement};") for statement in table.statements)
        lines = [f"note: {note}" for note in table.notes] if table.state in ("created", "missing") else []
        lines += [
            f"{'stops' if difference.stops else 'differs'}: {difference.what}" + (f": {statement}" if statement else "")
            for difference, statement in table.differences
        ]
        for line in lines:
            if (table.logical, line) not in said:  # once for all shards
                said.add((table.logical, line))
                yield Text(f"-- {table.name}: {line}", style="dim" if line.startswith("note") else "")
    words = [f"{number:,} {'to create' if state == 'missing' else state}" for state, number in count.items() if number]
    yield Text(
        f"{'-- ' if dry_run else ''}target {name}: {counted(len(tables), 'table')}: {', '.join(words) or 'none'}"
    )
