"""`lockstep forget`: rows erased from all that Lockstep keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc_core.cli.options import read_text
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.model.readable import counted

app = typer.Typer()


@pipeline_command(app)
def forget(
    call: PipelineCall,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A logical table.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Of rows to erase: COLUMN=VALUE, with commas between columns, or a JSON object; may be repeated.",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", exists=True, dir_okay=False, help="Such keys, one a line."),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--where", metavar="CONDITION", help="SQL: the rows that it was ever true of, in any staged change."
        ),
    ] = "",
    although_it_exists: Annotated[
        bool,
        typer.Option(
            "--although-it-exists", help="Do not ask the source: erase what is staged until now of rows that it has."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show where the rows are.")] = False,
) -> None:
    """Erase rows of people from staged files, files of runs, evidence, tombstones and lakes.

    \b
      lockstep forget shop shop.customers --key id=42 --dry-run
      lockstep forget shop shop.lines --key '{"order_id": 7, "line": 1}'
      lockstep forget shop shop.customers --where "email = 'ann@example.org'" --dry-run

    The rows are deleted at the source before, and the deletes applied. Afterwards everything is read again, to prove
    that no row is left. After a kill, run the same command again. Exit codes: 0 no row is left; 3 nothing was erased.
    """
    from cdc_core.operations.forget.forgetting import forget as erase

    lines = [] if keys is None else read_text(keys, "keys, one a line").replace("\r\n", "\n").split("\n")
    given = [*(key or ()), *(line for line in lines if line.strip())]
    with call.opened() as ready:
        report = erase(ready, table, given, where=where, although_it_exists=although_it_exists, dry_run=dry_run)
    places = [{"kind": place.kind, "where": place.where, "rows": place.rows} for place in report.places]
    document = {
        "table": table,
        "keys": report.keys,
        "request": report.request,
        "dry_run": dry_run,
        "places": places,
        "other_sources": list(report.others),
        "other_tables": list(report.also),
    }
    title = f"{counted(report.keys, 'key')} of {table}: {'found in' if dry_run else 'erased from'}"
    call.answer(document, listing(title, places, "kind where rows") if places else "Nothing has rows of these keys.")
    if dry_run:
        call.output.note("nothing was erased: --dry-run")
    for source in report.others:
        call.output.note(
            f"not erased: files of {table} from {source or 'elsewhere'}, which is not a source of this pipeline"
        )
    if report.also:
        call.output.note(f"not erased: {', '.join(report.also)}, which the same source tables feed: erase there, too")
    call.output.note("not looked at: your logs and exports, and backups of the stage and of the meta database")
