"""What verifications have proven, kept on the stage: `evidence/target=<target>/<UTC time>-<number>.json`.

A file is written once, when its verification ends, and says which definition of the pipeline, which places of the logs
and which rows it is about. Its own sha256, of the document without it, shows that nobody has edited it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.paths import segment
from cdc_core.stage.objects import ObjectStore
from cdc_core.verify.verifier import TableResult
from cdc_core.windows import MICROSECONDS, from_us

EVIDENCE = "evidence/"
VERSION = 1


def folder_of(target: str) -> str:
    return f"{EVIDENCE}target={segment(target)}/"


def keep(
    store: ObjectStore,
    pipeline: Pipeline,
    target: str,
    results: Sequence[TableResult],
    *,
    started_us: int,
    ended_us: int,
) -> str:
    """Writes the evidence; its path on the stage."""
    document = document_of(pipeline, target, results, started_us=started_us, ended_us=ended_us)
    document["sha256"] = _digest(document)
    at = datetime.fromtimestamp(ended_us / MICROSECONDS, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = f"{folder_of(target)}{at}-{secrets.token_hex(4)}.json"
    store.put(path, json.dumps(document, indent=1, ensure_ascii=False).encode())
    return path


def document_of(
    pipeline: Pipeline, target: str, results: Sequence[TableResult], *, started_us: int, ended_us: int
) -> dict[str, Any]:
    """The evidence as JSON: findings without the values of their columns."""
    config = json.dumps(pipeline.model_dump(mode="json"), sort_keys=True)
    return {
        "version": VERSION,
        "pipeline": pipeline.pipeline,
        "target": target,
        "started": from_us(started_us).isoformat(),
        "ended": from_us(ended_us).isoformat(),
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "equal": all(one.equal for one in results),
        "tables": [_table(one) for one in results],
    }


def newest(store: ObjectStore, target: str) -> tuple[str, dict[str, Any]]:
    """The path and the document of the newest evidence.

    Raises Refused (verify.no_evidence), DataAtRisk (verify.evidence).
    """
    paths = sorted(info.path for info in store.list(folder_of(target)) if info.path.endswith(".json"))
    if not paths:
        raise Refused(
            f"The target {target!r} was never verified.",
            where=store.uri,
            code="verify.no_evidence",
            remedy="run `lockstep verify`",
        )
    return paths[-1], read(store, paths[-1])


def read(store: ObjectStore, path: str) -> dict[str, Any]:
    """The document of this path. Raises DataAtRisk (verify.evidence), and what the store raises."""
    try:
        document: dict[str, Any] = json.loads(store.get(path))
        said = document.pop("sha256")
        if said != _digest(document):
            raise ValueError("its sha256 is another")
    except (ValueError, KeyError, AttributeError) as error:
        raise DataAtRisk(
            f"The evidence is not what a verification wrote: {error}.",
            where=path,
            code="verify.evidence",
            remedy="verify again, which writes new evidence; find out who has changed the file",
        ) from None
    return {**document, "sha256": said}


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _table(one: TableResult) -> dict[str, Any]:
    return {
        "table": one.table,
        "equal": one.equal,
        "error": None if one.error is None else {"code": one.error.code, "what": one.error.what},
        "read": [{"source": span.source, "low": str(span.low), "high": str(span.high)} for span in one.spans],
        "consumed_until": dict(one.consumed_until),
        "source": {"rows": one.source.rows, "sum": one.source.sum_},
        "target": {"rows": one.target.rows, "sum": one.target.sum_},
        "moving": one.moving,
        "unsettled": one.unsettled,
        "differences": dict(one.found),
        "columns": list(one.columns),
        "left_out": dict(one.left_out),
        "seconds": round(one.seconds, 3),
        "findings": [
            {
                "id": finding.id,
                "kind": str(finding.kind),
                "wrong": str(finding.wrong),
                "key": dict(finding.key),
                "columns": sorted(finding.columns),
                "source_rows": finding.source_rows,
                "target_rows": finding.target_rows,
                "shards": list(finding.shards),
            }
            for finding in one.findings
        ],
    }
