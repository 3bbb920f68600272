"""Verdicts in readable form: lines for the task's log, and one page for a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884}code{font-size:.9em;overflow-wrap:anywhere}.met{color:#2a7d3f}.not{color:#c0392b}"
)


def summary(name: str, verdict: Mapping[str, Any]) -> str:
    """Readable lines: what was met, and each failure with examples."""
    bad = [expectation for expectation in verdict["expectations"] if not expectation["success"]]
    total = len(verdict["expectations"])
    lines = [f"{_title(name, verdict)}: {_rows(verdict)}, {total - len(bad)} of {total} expectations met"]
    lines += [
        f"  {expectation['severity']}: {_call(expectation)}: {json.dumps(_shown(expectation))[:600]}"
        for expectation in bad
    ]
    return "\n".join(lines)


def page(run_id: str, target: str, verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """All verdicts of a run on a target as one HTML page that needs nothing else."""
    failed = [name for name, verdict in verdicts.items() if not verdict["success"]]
    headline = f"not met: {', '.join(failed)}" if failed else "all critical expectations met"
    parts = [_section(name, verdict) for name, verdict in verdicts.items()]
    return (
        f"<!doctype html><meta charset=utf-8><title>Quality of {escape(run_id)}</title><style>{_STYLE}</style>"
        f"<h1>Quality of {escape(run_id)}</h1><p>Target {escape(target)}: "
        f"<b class={'not' if failed else 'met'}>{escape(headline)}</b></p>{''.join(parts)}"
    )


def _section(name: str, verdict: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td class={'met' if expectation['success'] else 'not'}>{'met' if expectation['success'] else 'not met'}"
        f"<td>{escape(expectation['severity'])}<td><code>{escape(_call(expectation))}</code>"
        f"<td><code>{escape(json.dumps(_shown(expectation))) if not expectation['success'] else ''}</code>"
        for expectation in verdict["expectations"]
    )
    examples = "".join(f"<li><code>{escape(json.dumps(example))}</code>" for example in verdict.get("examples", ()))
    return (
        f"<h2>{escape(_title(name, verdict))}</h2><p>{escape(_rows(verdict))}</p>"
        f"<table><tr><th>result<th>severity<th>expectation<th>found{rows}</table>"
        + (f"<p>Rows, for example:</p><ul>{examples}</ul>" if examples else "")
    )


def _rows(verdict: Mapping[str, Any]) -> str:
    """How many rows were judged. of: how many there are, where a sample may have been taken."""
    rows, of = verdict["rows"], verdict.get("of")
    if of is None:
        return f"{rows:,} rows"
    return f"all {rows:,} rows" if rows == of else f"a sample of {rows:,} of {of:,} rows"


def _title(name: str, verdict: Mapping[str, Any]) -> str:
    return f"{name}, {verdict['file']} on {verdict['stage']} {verdict['table']}" if "file" in verdict else name


def _call(expectation: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in expectation["arguments"].items())
    return f"{expectation['expectation']}({arguments})"


def _shown(expectation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in expectation["result"].items() if value not in (None, [], {})}
