"""What verifications have found, kept on the stage: `evidence/target=<target>/<UTC time>-<number>.json`.

A file is written when its verification ends, and again only if rows are erased (`operations.forget`). It says in which
mode it was, and which definition of the pipeline, which places of the logs and which rows it is about. Its own sha256,
of the document without it, shows that nobody has edited it. The files of verifications that compared no rows, only
counts, end with `.count.json`. Meta has a summary of the latest of each mode.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.meta.task_failures import REPAIR
from cdc_core.meta.verifications import known_to_differ
from cdc_core.model.paths import segment
from cdc_core.model.windows import MICROSECONDS, from_us
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import TableResult, VerifyReport, proven
from cdc_core.operations.verify.verify_job import VerifyJob, config_digest
from cdc_core.stage.objects import ObjectStore

EVIDENCE = "evidence/"
ROW_MODES = frozenset({Mode.ORDERED, Mode.RANDOM})
"""Modes that compare rows."""
MOST_FILES = 500
"""How much earlier evidence is read for differences that are still there."""
_COUNTED = ".count"
_SUMMARISED = ("started", "ended", "config_sha256", "all_tables", "equal")
"""What meta repeats of a document: which evidence counts is judged without reading the stage."""


def folder_of(target: str) -> str:
    return f"{EVIDENCE}target={segment(target)}/"


def keep(job: VerifyJob, report: VerifyReport) -> str:
    """Writes the evidence, and ends the verification in meta if the job has a lease; the evidence's path on the stage.

    Raises RetryLater (lease.lost).
    """
    ended_us = job.meta.now_us()
    document = document_of(job, report, ended_us=ended_us)
    at = datetime.fromtimestamp(ended_us / MICROSECONDS, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    suffix = "" if job.mode in ROW_MODES else _COUNTED
    path = f"{folder_of(job.target.name)}{at}-{secrets.token_hex(4)}{suffix}.json"
    put(job.opened.store, path, document)
    if job.lease is not None:
        summary = {name: document[name] for name in _SUMMARISED} | _figures(report.results)
        summary |= {"path": path, "differing": _differing(job, report.results)}
        job.meta.verifications.finish(job.lease, job.target.name, job.mode, summary)
        if document["equal"] is True and report.all_tables:
            job.meta.failures.clear(REPAIR, job.target.name)  # nothing is left to repair
            job.meta.ledgers.settle(
                job.target.name, before_us=report.started_us
            )  # nothing that was set aside is lacking
    return path


def put(store: ObjectStore, path: str, document: Mapping[str, Any]) -> None:
    """Writes evidence, with its digest."""
    bare = {name: value for name, value in document.items() if name != "sha256"}
    text = json.dumps({**bare, "sha256": _digest(bare)}, indent=1, ensure_ascii=False)
    store.put(path, text.encode())


def document_of(job: VerifyJob, report: VerifyReport, *, ended_us: int) -> dict[str, Any]:
    """The evidence as JSON: findings without the values of their columns."""
    sample = {"seed": report.seed, "sample_percent": report.share * 100} if job.mode is Mode.RANDOM else {}
    return {
        "pipeline": job.opened.name,
        "target": job.target.name,
        "mode": job.mode,
        **sample,
        "started": from_us(report.started_us).isoformat(),
        "ended": from_us(ended_us).isoformat(),
        "config_sha256": config_digest(job.pipeline),
        "all_tables": report.all_tables,
        "servers": dict(report.servers),
        "equal": proven(report.results),
        "tables": [result.to_document(values=False) for result in report.results],
    }


def _figures(results: Sequence[TableResult]) -> dict[str, int]:
    """Sums over the tables, for meta, `lockstep status` and the page."""
    return {
        "tables": len(results),
        "source_rows": sum(result.source_rows for result in results),
        "skipped_rows": sum(result.skipped_rows for result in results),
        "differences": sum(result.differences for result in results),
        "unsettled": sum(result.unsettled for result in results),
        "not_compared": sum(result.error is not None for result in results),
    }


def _differing(job: VerifyJob, results: Sequence[TableResult]) -> dict[str, int]:
    """How many differences of each table were found that no later verification of all of its rows has found gone."""
    differing = known_to_differ(job.meta.verifications.evidence(job.target.name))
    for result in results:
        if result.error is None and result.mode is Mode.ORDERED:
            differing.pop(result.table, None)
        if result.differences and result.mode in ROW_MODES:
            differing[result.table] = max(result.differences, differing.get(result.table, 0))
    return differing


def outstanding(store: ObjectStore, target: str) -> tuple[list[str], dict[str, Any]]:
    """The paths of the evidence that says which rows differ, newest first, and a document that joins it: of each table
    the newest evidence about all of its rows, and newer samples. It has the mode and the tables' parts alone.

    A verification of some tables, a sample, and a table that could not be verified say nothing of other rows: earlier
    evidence about those counts. Raises Refused (verify.no_evidence), DataAtRisk (verify.evidence).
    """
    paths = [
        info.path
        for info in store.list(folder_of(target))
        if info.path.endswith(".json") and not info.path.endswith(f"{_COUNTED}.json")
    ]
    if not paths:
        raise Refused(
            f"The target {target!r} was never verified.",
            where=store.uri,
            code="verify.no_evidence",
            remedy="run `lockstep verify`",
        )
    used: list[str] = []
    tables: list[dict[str, Any]] = []
    settled: set[str] = set()
    for path in sorted(paths, reverse=True)[:MOST_FILES]:
        document = read(store, path)
        ordered = document["mode"] == Mode.ORDERED
        said = [table for table in document["tables"] if table["table"] not in settled]
        if ordered:
            settled |= {table["table"] for table in said if table["error"] is None}
        if not used or any(table["findings"] or table["unsettled"] for table in said):
            used.append(path)
            tables += said
        if ordered and document["all_tables"] and not any(table["error"] for table in said):
            break
    return used, {"mode": Mode.ORDERED, "tables": tables}


def read(store: ObjectStore, path: str) -> dict[str, Any]:
    """The document of this path. Raises DataAtRisk (verify.evidence), and what the store raises."""
    try:
        document: dict[str, Any] = json.loads(store.get(path))
        said = document.pop("sha256")
        if said != _digest(document):
            raise ValueError("its sha256 is another")
    except (ValueError, KeyError, AttributeError) as error:
        raise DataAtRisk(
            f"The evidence is damaged, or was changed after it was written: {error}.",
            where=path,
            code="verify.evidence",
            remedy="verify again, which writes new evidence, and find out what changed the file",
        ) from None
    return {**document, "sha256": said}


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
