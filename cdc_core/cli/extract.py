"""`lockstep extract`: from the sources' logs to staged files, without Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
    moment_us,
    opened,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.errors import UsageError
from cdc_core.model.json_codec import plain
from cdc_core.model.readable import duration, moment, size

if TYPE_CHECKING:
    from cdc_core.operations.extract import DrainResult

FOREVER_US = 1 << 62


def register(app: typer.Typer) -> None:
    app.command()(extract)


def extract(
    pipeline: PipelineArgument,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
    ] = None,
    until: Annotated[
        str, typer.Option("--until", metavar="now|TIME", help="Read up to now, or up to an ISO 8601 time with a zone.")
    ] = "now",
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
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Read the sources' logs, stage the changes, and return.

    \b
      lockstep extract shop --until now
      lockstep extract shop --accept binlog.000012:4711

    Continues where the last extract ended. Of several extractors of a source, one reads and the others wait. Ctrl-C
    stages what was received, up to the last whole transaction.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], source, "source")
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
    from cdc_core.operations.extract.side_by_side import extract_sources, lag_s

    with opened(parsed, output) as ready:
        results = extract_sources(
            ready, names, until_us=until_us, endless=follow, accept=accepted,
            abandon=abandoned[0] if abandoned else None,
        )  # fmt: skip
    document = {
        "pipeline": parsed.pipeline,
        "sources": [extracted_document(name, result) for name, result in results.items()],
    }
    columns = ("source", "rows", "batches", "files", "size", "position", "complete up to (UTC)", "lag")
    rows = []
    for name, result in results.items():
        staged, behind_s = result.staged, lag_s(result)
        rows.append((
            name, staged.rows, staged.batches, staged.files, size(staged.size_bytes), result.position,
            moment(result.watermark_us), "unknown" if behind_s is None else duration(behind_s),
        ))  # fmt: skip
    output.answer(document, table("staged", columns, rows, numbers=("rows", "batches", "files", "size", "lag")))
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
        "partial": {table: plain(one) for table, one in result.partial.items()},
    }
