"""`lockstep ddl`: definitions of the tables of all shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import TargetOption, read_text
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import UsageError, combined, to_document
from cdc_core.model.readable import counted

if TYPE_CHECKING:
    from cdc_core.operations.ddl.rollout import Decided, DecidedTable, Options, RolloutWork

app = typer.Typer(name="ddl", help="Alter the tables of all shards of a target.", no_args_is_help=True)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="ALTER TABLE statements below `-- migrate:up` and `-- migrate:down`.")
]
DownOption = Annotated[bool, typer.Option("--down", help="Take the file back.")]
CanaryOption = Annotated[int, typer.Option("--canary", metavar="SHARD", min=0, help="The shard to alter first.")]
WaveOption = Annotated[
    int, typer.Option("--wave", metavar="N", min=1, max=64, help="How many shards to alter at once after that.")
]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", metavar="S", min=1, help="Seconds to wait for a lock of each shard, 2 at a time."),
]
CopyOption = Annotated[
    str,
    typer.Option(
        "--copy-with",
        metavar="COMMAND",
        help="Command that makes copies for a statement that copies the table.",
    ),
]


@pipeline_command(app)
def plan(
    call: PipelineCall,
    file: FileArgument,
    target: TargetOption = None,
    down: DownOption = False,
    canary: CanaryOption = 0,
    copy_with: CopyOption = "",
) -> None:
    """Show how a file would alter the shards, and what prevents it. Alters nothing.

    \b
      lockstep ddl plan shop add-note.sql

    Tries every statement on an empty copy of a table. Statements that would copy or lock a table are refused, and
    shards that differ are listed. Exit code 3: something prevents it.
    """
    from cdc_core.operations.ddl.rollout import Options, decide

    with _work(call, target) as work:
        decided = decide(
            work,
            read_text(file, "ALTER TABLE statements"),
            file.name,
            "down" if down else "up",
            Options(canary=canary, copy_with=copy_with),
        )
        _answer(call, work, decided)
    call.output.leave(combined(list(decided.problems)) if decided.problems else None)


@pipeline_command(app)
def run(
    call: PipelineCall,
    file: FileArgument,
    target: TargetOption = None,
    down: DownOption = False,
    canary: CanaryOption = 0,
    wave: WaveOption = 8,
    patience: PatienceOption = 300.0,
    copy_with: CopyOption = "",
) -> None:
    """Alter all shards: one first, then the others in waves.

    \b
      lockstep ddl run shop add-note.sql --canary 17 --wave 16
      lockstep ddl run shop add-note.sql --down

    The first error stops the waves that have not begun; `lockstep ddl resume` continues. --down executes the statements
    below `-- migrate:down`; shards that the file has not reached stay as they are.
    """
    from cdc_core.operations.ddl.rollout import Options

    _roll(call, target, file, "down" if down else "up", Options(canary, wave, patience, copy_with))


@pipeline_command(app)
def resume(
    call: PipelineCall,
    target: TargetOption = None,
    canary: CanaryOption = 0,
    wave: WaveOption = 8,
    patience: PatienceOption = 300.0,
    copy_with: CopyOption = "",
) -> None:
    """Continue a rollout that was stopped or killed.

    \b
      lockstep ddl resume shop

    Uses the file as it was, and begins with the definitions that the servers have.
    """
    from cdc_core.operations.ddl.rollout import Options

    _roll(call, target, None, "", Options(canary, wave, patience, copy_with))


def _roll(call: PipelineCall, target: str | None, file: Path | None, direction: str, options: Options) -> None:
    from cdc_core.operations.ddl.rollout import decide, roll, rollout_lease

    with _work(call, target) as work, rollout_lease(work) as lease:
        if file is None:
            text, name, direction = _kept(work)
        else:
            text, name = read_text(file, "ALTER TABLE statements"), file.name
        decided = decide(work, text, name, direction, options)
        _answer(call, work, roll(work, decided, lease, options))


def _kept(work: RolloutWork) -> tuple[str, str, str]:
    from cdc_core.meta.rollouts import OPEN

    rollout = work.opened.meta.rollouts.latest(work.target.name)
    if rollout is None or rollout.state != OPEN:
        raise UsageError(
            f"No rollout is under way at {work.target.name!r}.",
            where=work.target.name,
            code="usage.nothing_open",
            remedy="begin one with `lockstep ddl run PIPELINE FILE`",
        )
    return rollout.script, rollout.name, rollout.direction


@contextmanager
def _work(call: PipelineCall, target: str | None) -> Iterator[RolloutWork]:
    from cdc_core.operations.ddl.rollout import RolloutWork

    chosen = call.pipeline.one_database(target, "lockstep ddl")
    with call.opened() as ready:
        yield RolloutWork(ready, chosen)


def _answer(call: PipelineCall, work: RolloutWork, decided: Decided) -> None:
    from cdc_core.operations.ddl.rollout import summary

    tables = [_described(table) for table in decided.tables]
    document: dict[str, Any] = {
        "target": work.target.name,
        "file": decided.script.name,
        "direction": decided.direction,
        "done": decided.done,
        "tables": tables,
        "problems": [to_document(problem)["error"] for problem in decided.problems],
    }
    shown = [Text(line) for table in decided.tables for line in _statements(table)]
    count = max((len(table.statements) for table in decided.tables), default=0)
    listed = listing(
        f"{decided.script.name} ({decided.direction}): {work.target.name}, {counted(count, 'statement')}",
        [shard for table in tables for shard in table["shards"]],
        "table executed definition",
    )
    call.answer(document, *shown, listed)
    call.output.note(summary(decided))


def _statements(table: DecidedTable) -> Iterator[str]:
    for number, statement in enumerate(table.statements):
        ways = sorted({foretold.ways[number] for foretold in table.foretold.values()})
        yield f"{number + 1}. ALTER TABLE {table.logical} {statement.clauses}  -- {' or '.join(ways) or 'not foretold'}"


def _described(table: DecidedTable) -> dict[str, Any]:
    shards = []
    for shard in table.shards:
        behind = table.behind(shard)
        shards.append(
            {
                "shard": shard.place.shard,
                "table": shard.place.name,
                "executed": behind,
                "definition": shard.found.digest if shard.found else "missing",
                "differs": list(table.drift(shard)) if behind is None else [],
            }
        )
    return {
        "table": table.logical,
        "statements": [
            {"clauses": statement.clauses, "ways": {server: told.ways[at] for server, told in table.foretold.items()}}
            for at, statement in enumerate(table.statements)
        ],
        "shards": shards,
    }
