"""`lockstep lake`: what a lake has."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import PartialOption, time_us
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import UsageError
from cdc_core.model.readable import counted

if TYPE_CHECKING:
    from cdc_core.operations.lake.cuts_at import CutMoment

app = typer.Typer(name="lake", help="Read a lake as of a moment, and keep it small.", no_args_is_help=True)
LakeOption = Annotated[str | None, typer.Option("--target", metavar="NAME", help="The lake, if there are several.")]


@pipeline_command(app)
def at(
    call: PipelineCall,
    target: LakeOption = None,
    position: Annotated[
        str | None, typer.Option("--position", metavar="FILE:OFFSET", help="A position of the only source's log.")
    ] = None,
    gtid: Annotated[
        str | None, typer.Option("--gtid", metavar="SET", help="A GTID set, as the server prints it.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="TIME", help="A time, with its zone.")] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="Whose SQL to print: spark, trino or duckdb.")
    ] = "spark",
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="NAME", help="What the engine calls the catalog [default: the target]"),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option("--views", metavar="SCHEMA", help="Print CREATE VIEW statements in this schema instead."),
    ] = None,
    partial: PartialOption = False,
) -> None:
    """Show the database as of a moment: the snapshot of each table, and the SQL that reads them all.

    \b
      lockstep lake at shop --time 2026-11-21T04:00:00Z
      lockstep lake at shop --position binlog.000042:1234 --engine trino
      lockstep lake at shop --time 2026-11-21T04:00:00Z --views shop_at_4 | spark-sql

    The tables together are the database at one position of the log: the last one that a run has published, at or
    before the moment. Without a moment, that is the newest one. Exit code 3: there is none. A table that had not all
    of its rows is named with what it lacks, and gets no SQL unless you pass --partial.
    """
    from cdc_core.operations.lake.cuts_at import cut_at, one_lake, quoted, shown
    from cdc_core.operations.lake.cuts_at import views as views_of

    if engine not in ("spark", "trino", "duckdb"):
        what = f"{engine!r} is not an engine that Lockstep prints SQL for."
        raise _argument(what, "--engine", "choose spark, trino or duckdb")
    moment = _moment(call, position, gtid, time)
    chosen = one_lake(call.pipeline, target)
    cut = cut_at(call.store(), chosen, moment)
    cut_views, name = views_of(chosen, cut), catalog or chosen.name
    tables: list[dict[str, Any]] = [
        {
            "table": table.logical,
            "mirror": table.name,
            "snapshot": table.snapshot,
            "lacks": list(table.lacks),
            "sql": table.sql(engine, name) if table.metadata and (partial or not table.lacks) else None,
        }
        for table in cut_views
    ]
    document = {"target": chosen.name, "run": cut.run_id, "sources": dict(shown(cut)), "tables": tables}
    lacking = [f"{table.name} is partial: {'; '.join(table.lacks)}" for table in cut_views if table.lacks]
    read = [table for table in tables if table["sql"] is not None]
    if views is not None:
        script = [f"-- {' '.join(line.split())}" for line in lacking] + [f"CREATE SCHEMA IF NOT EXISTS {views};"]
        for table, cut_view in zip(tables, cut_views, strict=True):
            if table["sql"] is not None:
                view = f"{views}.{quoted(engine, cut_view.identifier[-1])}"
                script.append(f"CREATE OR REPLACE VIEW {view} AS {table['sql']};")
        call.answer({**document, "script": script}, *(Text(line, no_wrap=True, overflow="ignore") for line in script))
        return
    lines = [f"{source}: {where}" for source, where in shown(cut).items()]
    # An id, to be pasted: without the commas of numbers.
    rows = [{"mirror": table.name, "snapshot": table.snapshot and str(table.snapshot)} for table in cut_views]
    call.answer(
        document,
        *map(Text, lines),
        listing(f"cut of {cut.run_id}", rows, "mirror snapshot"),
        *map(Text, lacking),
        *(Text(f"{table['sql']};", no_wrap=True, overflow="ignore") for table in read),
    )


def _moment(call: PipelineCall, position: str | None, gtid: str | None, time: str | None) -> CutMoment:
    from cdc_core.model.position import Position
    from cdc_core.operations.lake.cuts_at import CutMoment

    if sum(moment is not None for moment in (position, gtid, time)) > 1:
        raise _argument("The moment is given twice.", "--position", "give one of --position, --gtid and --time")
    if gtid == "":
        raise _argument("--gtid is empty.", "--gtid", "give a GTID set as the server prints it")
    try:
        place = Position.from_text(position) if position is not None else None
    except ValueError as error:
        raise _argument(f"{error}.", "--position", "give one such as binlog.000042:1234") from None
    if place is not None and len(call.pipeline.sources) > 1:
        what = "A position belongs to one source, and the pipeline has several."
        raise _argument(what, "--position", "give --time")
    return CutMoment(place, gtid or "", time_us(time, "--time") if time is not None else None)


@pipeline_command(app)
def maintain(call: PipelineCall, target: LakeOption = None) -> None:
    """Expire the snapshots that no kept cut needs; remove files that nothing names, and tombstones of purged changes.

    \b
      lockstep lake maintain shop

    Runs do this by themselves: the first of each hour expires, and the first of each day removes, too. `keep` of the
    target says which cuts stay.
    """
    from cdc_core.operations.lake.cuts_at import one_lake
    from cdc_core.operations.lake.maintain import maintain as maintained

    chosen = one_lake(call.pipeline, target)
    with call.opened() as ready:
        done = maintained(ready, chosen)
    lines = [
        f"{counted(done.kept, 'cut')} kept, {done.forgotten} forgotten",
        f"{counted(done.tables.snapshots, 'snapshot')} expired, {counted(done.tables.branches, 'old branch')} removed",
        f"{counted(done.tables.files + done.orphans, 'file')} removed",
        f"{counted(done.tombstones, 'tombstone')} removed",
        *done.problems,
    ]
    call.answer({"target": chosen.name, **asdict(done)}, *map(Text, lines))


def _argument(what: str, where: str, remedy: str) -> UsageError:
    return UsageError(what, where=where, code="usage.argument", remedy=remedy)
