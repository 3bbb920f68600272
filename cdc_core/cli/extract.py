"""`lockstep extract`: from the sources' logs to staged files, without Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.options import SourcesOption, UntilOption, moment_us
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import UsageError
from cdc_core.model.json_codec import plain
from cdc_core.model.readable import moment

if TYPE_CHECKING:
    from cdc_core.operations.extract import DrainResult

app = typer.Typer()

FOREVER_US = 1 << 62


@pipeline_command(app)
def extract(
    call: PipelineCall,
    source: SourcesOption = None,
    until: UntilOption = "now",
    follow: Annotated[
        bool, typer.Option("--follow", help="Read until interrupted; wait while another extractor has a source.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="FILE:OFFSET",
            help="Continue past the event at this position; may be repeated.",
        ),
    ] = None,
    abandon: Annotated[
        str | None,
        typer.Option(
            "--abandon",
            metavar="FILE:OFFSET",
            help="Give up the log from this position on, continue at its end, and copy every table again.",
        ),
    ] = None,
) -> None:
    """Read the sources' logs, stage the changes, and return.

    \b
      lockstep extract shop --until now
      lockstep extract shop --accept binlog.000012:4711

    Continues where the last extract ended. Of several extractors of a source, one reads and the others wait. Ctrl-C
    stages what was received, up to the last whole transaction.
    """
    names = call.sources(source)
    until_us = moment_us(until)
    if follow:
        if until != "now":
            raise UsageError(
                "--follow reads until it is interrupted; --until says where to end.",
                where="lockstep extract",
                code="usage.argument",
                remedy="give one of the two",
            )
        until_us = FOREVER_US
    accepted = _places("--accept", accept or [], names)
    abandoned = _places("--abandon", [] if abandon is None else [abandon], names)
    from cdc_core.operations.extract.partial import note_partial
    from cdc_core.operations.extract.side_by_side import extract_sources

    with call.opened() as ready:
        results = extract_sources(
            ready,
            names,
            until_us=until_us,
            endless=follow,
            accept=accepted,
            abandon=abandoned[0] if abandoned else None,
        )
    staged = [extracted_document(name, result) for name, result in results.items()]
    keys = "source rows batches files size_bytes position complete_to lag_s"
    call.answer({"sources": staged}, listing("staged", staged, keys))
    note_partial(ready, results)


def _places(option: str, texts: list[str], names: list[str]) -> tuple[tuple[str, int], ...]:
    from cdc_core.operations.extract.acceptances import parse_place

    if texts and len(names) != 1:
        raise UsageError(
            f"{option} names a position in the log of one source, but there are {len(names)} sources.",
            where="lockstep extract",
            code="usage.argument",
            remedy="add --source NAME",
        )
    return tuple(parse_place(text, where=option) for text in texts)


def extracted_document(source: str, result: DrainResult) -> dict[str, Any]:
    """The progress of a source's extract, for --json."""
    from cdc_core.operations.extract.side_by_side import lag_s

    staged, behind_s = result.staged, lag_s(result)
    return {
        "source": source,
        "done": result.done,
        "rows": staged.rows,
        "events": staged.events,
        "batches": staged.batches,
        "files": staged.files,
        "size_bytes": staged.size_bytes,
        "position": result.position.to_json(),
        "complete_to": moment(result.watermark_us),
        "lag_s": None if behind_s is None else round(behind_s, 3),
        "partial": {table: plain(coverage) for table, coverage in result.partial.items()},
    }
