"""`lockstep ddl`: definitions of the tables of all shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    TargetOption,
    load_pipeline,
    opened,
)
from cdc_core.cli.output import CliOutput, print_error, table
from cdc_core.errors import UsageError, combined, to_document

if TYPE_CHECKING:
    from cdc_core.meta import ShardProgress
    from cdc_core.operations.ddl.rollout import Decided, DecidedTable, Options, RolloutWork

app = typer.Typer(name="ddl", help="Alter the tables of all shards of a target.", no_args_is_help=True)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="ALTER TABLE statements below `-- migrate:up` and `-- migrate:down`.")
]
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


@app.command()
def plan(
    pipeline: PipelineArgument,
    file: FileArgument,
    target: TargetOption = None,
    down: Annotated[bool, typer.Option("--down", help="Plan the way back.")] = False,
    canary: CanaryOption = 0,
    copy_with: CopyOption = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show how a file would alter the shards, and what prevents it. Alters nothing.

    \b
      lockstep ddl plan shop add-note.sql

    Tries every statement on an empty copy of a table. Statements that would copy or lock a table are refused, and
    shards that differ are listed. Exit code 3: something prevents it.
    """
    from cdc_core.operations.ddl.rollout import Options, decide

    output = CliOutput(as_json)
    with _work(pipeline, pipelines, target, "ddl plan", output) as work:
        decided = decide(
            work, _text(file), file.name, "down" if down else "up", Options(canary=canary, copy_with=copy_with)
        )
    _answer(output, work, decided)
    if decided.problems:
        worst = combined(list(decided.problems))
        if not as_json:
            print_error(worst, as_json=False)
        raise typer.Exit(worst.exit_code)


@app.command()
def run(
    pipeline: PipelineArgument,
    file: FileArgument,
    target: TargetOption = None,
    canary: CanaryOption = 0,
    wave: WaveOption = 8,
    patience: PatienceOption = 300.0,
    copy_with: CopyOption = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Alter all shards: one first, then the others in waves.

    \b
      lockstep ddl run shop add-note.sql
      lockstep ddl run shop add-note.sql --canary 17 --wave 16

    The first error stops the waves that have not begun; `lockstep ddl resume` continues.
    """
    from cdc_core.operations.ddl.rollout import Options

    _roll(pipeline, pipelines, target, file, "up", Options(canary, wave, patience, copy_with), as_json=as_json)


@app.command()
def down(
    pipeline: PipelineArgument,
    file: FileArgument,
    target: TargetOption = None,
    canary: CanaryOption = 0,
    wave: WaveOption = 8,
    patience: PatienceOption = 300.0,
    copy_with: CopyOption = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Take a file back: its statements below `-- migrate:down`, on all shards.

    \b
      lockstep ddl down shop add-note.sql

    Shards that the file has not reached stay as they are.
    """
    from cdc_core.operations.ddl.rollout import Options

    _roll(pipeline, pipelines, target, file, "down", Options(canary, wave, patience, copy_with), as_json=as_json)


@app.command()
def resume(
    pipeline: PipelineArgument,
    target: TargetOption = None,
    canary: CanaryOption = 0,
    wave: WaveOption = 8,
    patience: PatienceOption = 300.0,
    copy_with: CopyOption = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Continue a rollout that was stopped or killed.

    \b
      lockstep ddl resume shop

    Uses the file as it was, and begins with the definitions that the servers have.
    """
    from cdc_core.operations.ddl.rollout import Options

    _roll(pipeline, pipelines, target, None, "", Options(canary, wave, patience, copy_with), as_json=as_json)


def _roll(
    pipeline: str,
    pipelines: Path,
    target: str | None,
    file: Path | None,
    direction: str,
    options: Options,
    *,
    as_json: bool,
) -> None:
    from cdc_core.operations.ddl.rollout import decide, roll, rollout_lease

    output = CliOutput(as_json)

    def moved(name: str, progress: ShardProgress) -> None:
        output.note(f"{name}: {progress.behind} of its statements")

    options = replace(options, moved=moved)
    with _work(pipeline, pipelines, target, "ddl", output) as work, rollout_lease(work) as lease:
        if file is None:
            text, name, direction = _kept(work)
        else:
            text, name = _text(file), file.name
        decided = decide(work, text, name, direction, options)
        _answer(output, work, roll(work, decided, lease, options))


def _kept(work: RolloutWork) -> tuple[str, str, str]:
    from cdc_core.meta.rollouts import OPEN

    rollout = work.opened.meta.rollouts.latest(work.target.name)
    if rollout is None or rollout.state != OPEN:
        raise UsageError(
            f"No change of definitions of {work.target.name!r} is under way.",
            where=work.target.name,
            code="usage.nothing_open",
            remedy="begin one by `lockstep ddl run PIPELINE FILE`",
        )
    return rollout.script, rollout.name, rollout.direction


@contextmanager
def _work(pipeline: str, pipelines: Path, target: str | None, command: str, output: CliOutput) -> Iterator[RolloutWork]:
    from cdc_core.operations.ddl.rollout import RolloutWork

    _, parsed = load_pipeline(pipeline, pipelines)
    chosen = parsed.one_target(target, f"lockstep {command}")
    with opened(parsed, output) as ready:
        yield RolloutWork(ready, chosen)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.",
            where=str(file),
            code="usage.argument",
            remedy="give the path of a text file with ALTER TABLE statements",
        ) from None


def _answer(output: CliOutput, work: RolloutWork, decided: Decided) -> None:
    from cdc_core.operations.ddl.rollout import summary

    noted = _noted(work)
    tables = [_described(one, noted) for one in decided.tables]
    document: dict[str, Any] = {
        "pipeline": work.opened.name,
        "target": work.target.name,
        "file": decided.script.name,
        "direction": decided.direction,
        "done": decided.done,
        "tables": tables,
        "problems": [to_document(one)["error"] for one in decided.problems],
    }
    shown = [Text(line) for one in decided.tables for line in _statements(one)]
    rows = [
        (shard["table"], shard["behind"], shard["error"], shard["definition"])
        for one in tables
        for shard in one["shards"]
    ]
    count = max((len(one.statements) for one in decided.tables), default=0)
    listed = table(
        f"{decided.script.name} ({decided.direction}): {work.target.name}",
        ("table", f"statements of {count}", "last error", "definition"),
        rows,
        numbers=(f"statements of {count}",),
        omit_empty=("last error",),
    )
    output.answer(document, *shown, listed)
    output.note(summary(decided))


def _noted(work: RolloutWork) -> dict[tuple[str, int], ShardProgress]:
    rollout = work.opened.meta.rollouts.latest(work.target.name)
    if rollout is None:
        return {}
    return {(one.logical, one.shard): one for one in work.opened.meta.rollouts.shards(rollout.rollout_id)}


def _statements(one: DecidedTable) -> Iterator[str]:
    for number, statement in enumerate(one.statements):
        ways = sorted({foretold.ways[number] for foretold in one.foretold.values()})
        yield f"{number + 1}. ALTER TABLE {one.logical} {statement.clauses}  -- {' or '.join(ways) or 'not foretold'}"


def _described(one: DecidedTable, noted: dict[tuple[str, int], ShardProgress]) -> dict[str, Any]:
    shards = []
    for shard in one.shards:
        known = noted.get((one.logical, shard.place.shard))
        behind = one.behind(shard)
        shards.append(
            {
                "shard": shard.place.shard,
                "table": shard.place.name,
                "behind": behind,
                "definition": shard.found.digest if shard.found else "missing",
                "differs": list(one.drift(shard)) if behind is None else [],
                "error": known.error if known and behind != len(one.statements) else "",
            }
        )
    return {
        "table": one.logical,
        "statements": [
            {"clauses": statement.clauses, "ways": {server: told.ways[at] for server, told in one.foretold.items()}}
            for at, statement in enumerate(one.statements)
        ],
        "shards": shards,
    }
