"""`lockstep check`: whether a pipeline can run, and what to do where it cannot."""

from __future__ import annotations

import typer
from rich.text import Text

from cdc_core.cli.options import DEFAULT_PIPELINES, JsonOption, PipelineArgument, PipelinesOption, load_pipeline
from cdc_core.cli.output import Output, table

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    pipeline: PipelineArgument, pipelines: PipelinesOption = DEFAULT_PIPELINES, as_json: JsonOption = False
) -> None:
    """Look at everything a pipeline needs, before it runs: each finding says how to fix it.

    \b
      lockstep check shop
      lockstep check ./shop.yaml --json

    Looks at connections, grants, binlog_format, row image and row metadata, whether the server still has the
    position we would begin at, server_id, the stage (with a conditional write), meta, and the target's tables and
    keys, by the very functions that extract and run refuse by. Exits with the class of the worst finding.
    """
    from cdc_core.check import check as preflight

    output = Output(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    report = preflight(parsed)
    worst = report.worst
    document = {
        "pipeline": parsed.pipeline,
        "ok": worst is None,
        "findings": [
            {
                "status": one.status,
                "subject": one.subject,
                "what": one.what,
                "remedy": one.remedy,
                "code": one.error.code if one.error else "",
                "class": one.error.exit_class if one.error else "",
            }
            for one in report.findings
        ],
    }
    rows = [
        (
            Text(one.status, style=STYLES[one.status]),
            one.subject,
            one.what,
            f"{one.remedy} ({one.error.code})" if one.error else one.remedy,
        )
        for one in report.findings
    ]
    count = {status: sum(one.status == status for one in report.findings) for status in STYLES}
    summary = f"{count['ok']} ok, {count['warn']} to know of, {count['fail']} to fix"
    output.answer(document, table("", ("", "what", "finding", "how to fix"), rows), summary)
    if worst is not None:
        raise typer.Exit(worst.exit_code)
