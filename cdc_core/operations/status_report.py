"""How far a pipeline is, and what is wrong with it: the reports that the command line prints and the page shows.

Reads only the meta database, neither source nor target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.meta import Meta, RunRow, Status
from cdc_core.meta.health import Problem, problems
from cdc_core.meta.meta_rows import CopyStatus, SourceStatus, StateCount, Verification
from cdc_core.model.json_codec import plain
from cdc_core.model.readable import counted, moment
from cdc_core.model.windows import parse_moment, to_us
from cdc_core.operations.cutover.cutover_report import left_alone


@dataclass(frozen=True, slots=True)
class StatusReport:
    """waiting: sources that were never extracted. problems: the worst first."""

    status: Status
    waiting: tuple[str, ...]
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **status_document(self.status, self.waiting),
            "ledgers": [ledger_document(ledger.entry) for ledger in self.status.ledgers],
            "problems": [problem_document(problem) for problem in self.problems],
        }

    @property
    def exit_code(self) -> int:
        """The class of the first problem that has one; 0 if nothing needs attention."""
        return next((problem.exit_code for problem in self.problems if problem.exit_code), 0)


def status_of(pipeline: Pipeline, meta: Meta) -> StatusReport:
    return report_of(pipeline, meta.status.find([target.name for target in pipeline.targets]))


def report_of(pipeline: Pipeline, status: Status) -> StatusReport:
    extracted = {source.source for source in status.sources}
    waiting = tuple(source.name for source in pipeline.sources if source.name not in extracted)
    return StatusReport(status, waiting, health(status, pipeline))


def health(status: Status, pipeline: Pipeline) -> tuple[Problem, ...]:
    """The problems of a pipeline, the worst first."""
    sources = [source.name for source in pipeline.sources]
    left = [left_alone(cutover, stops=pipeline.cutover.stop_with is not None) for cutover in status.cutovers]
    return (
        *filter(None, left),
        *problems(
            status,
            pipeline.windows,
            sources,
            [target.name for target in pipeline.targets],
        ),
    )


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem, for --json and for the page in Airflow."""
    return {
        "level": problem.level.value,
        "subject": problem.subject,
        "what": problem.what,
        "where": problem.where,
        "remedy": problem.remedy,
        "code": problem.code,
        "class": problem.exit_class,
        "since": moment(problem.since_us),
        "times": problem.times,
    }


def status_document(status: Status, waiting: Sequence[str]) -> dict[str, Any]:
    """The figures of a pipeline, for --json and for the page in Airflow. waiting: sources never extracted."""
    return {
        "pipeline": status.pipeline,
        "now": moment(status.now_us),
        "complete_to": moment(status.watermark_us),
        "sources": [_source(source) for source in status.sources]
        + [{"source": name, "position": None} for name in waiting],
        "targets": [
            {
                "target": target.target,
                "pending": _count(target.pending),
                "open": _count(target.waiting),
                "records": {state.value: _count(count) for state, count in target.records.items()},
                "last_error": target.last_error,
            }
            for target in status.targets
        ],
        "runs": [run_document(run) for run in status.runs],
        "verifications": [
            document for each in status.verifications for document in verification_documents(each, status.now_us)
        ],
    }


def verification_documents(verification: Verification, now_us: int) -> list[dict[str, Any]]:
    """The latest evidence of each mode of a target, the newest first, for --json and for the page in Airflow; and the
    verification that is under way or was interrupted, without evidence."""
    documents = [
        {"target": verification.target, "mode": mode, **said, "age_s": round(now_us / 1e6 - _seconds(said["ended"]), 3)}
        for mode, said in verification.evidence.items()
    ]
    documents.sort(key=lambda said: str(said["ended"]), reverse=True)
    if verification.progress:
        documents.append({"target": verification.target, "mode": "", "unfinished": moment(verification.updated_us)})
    # The latest knows of all differences that were found; earlier ones may have been found gone since.
    earlier = [said | {"differing": {}} for said in documents[1:]]
    return [said | {"verdict": verification_verdict(said)} for said in [*documents[:1], *earlier]]


def verification_verdict(document: Mapping[str, Any]) -> str:
    """What a document of `verification_documents` says, for people."""
    if "unfinished" in document:
        return f"not finished; the last range was verified at {document['unfinished']}"
    verdict = _own_verdict(document)
    differing = document.get("differing", {})
    known = sum(differing.values())
    if known > document.get("differences", known):
        verdict += f"; {known:,} with those of earlier verifications, in {', '.join(sorted(differing))}"
    return verdict


def _own_verdict(document: Mapping[str, Any]) -> str:
    if "why" in document:
        return str(document["why"])
    if document["differences"]:
        return f"{counted(document['differences'], 'difference')}"
    if document["not_compared"]:
        return f"{counted(document['not_compared'], 'table')} not compared"
    if document["unsettled"]:
        return f"{counted(document['unsettled'], 'row')} unsettled"
    return _VERDICTS[document["mode"]]


_VERDICTS = {
    "ordered": "equal", "random": "nothing found in a sample", "count": "as many rows",
    "max-id": "as many rows, and the greatest keys",
}  # fmt: skip


def _seconds(moment_: str) -> float:
    return to_us(parse_moment(moment_)) / 1e6


def engine(*, by_driver: bool) -> str:
    """What a run was done by, as it is shown."""
    return "driver" if by_driver else "spark"


def run_document(run: RunRow) -> dict[str, Any]:
    """A run, for --json."""
    return {
        "run_id": run.run_id,
        "state": run.state.value,
        "window": [moment(edge) for edge in run.window] if run.window else None,
        "last_error": run.last_error,
        "airflow_run_id": run.airflow_run_id,
        "by": engine(by_driver=run.by_driver),
        "updated": moment(run.updated_us),
    }


def _source(source: SourceStatus) -> dict[str, Any]:
    return {
        "source": source.source,
        "position": source.checkpoint.position.to_json(),
        "gtid_set": source.checkpoint.gtid_set,
        "complete_to": moment(source.checkpoint.watermark_us),
        "lag_s": None if source.lag_us is None else source.lag_us / 1e6,
        "holder": source.holder,
        "ring": asdict(source.ring),
        "epoch": source.epoch,
        "batches": source.batches,
        "rows": source.rows,
        "size_bytes": source.size_bytes,
        "notes": list(source.notes),
        "retention_s": source.retention_s,
        "partial": {table: plain(covered) for table, covered in source.partial.items()},
        "copier": source.copier,
        "copies_paused": moment(source.copies_paused_us),
        "copies_paused_by": source.copies_paused_by,
        "copies": [copy_document(each) for each in source.copies],
    }


def copy_document(copy: CopyStatus) -> dict[str, Any]:
    """A table with rows from before its capture, for --json and for the page in Airflow."""
    return {
        "table": copy.table,
        "state": copy.state.value,
        "why": copy.why,
        "rows": copy.rows,
        "rows_estimated": copy.rows_estimated,
        "percent": copy.percent,
        "bytes": copy.size_bytes,
        "rows_per_s": None if copy.rows_s is None else round(copy.rows_s, 1),
        "started": moment(copy.started_us),
        "updated": moment(copy.updated_us),
        "copied_to": copy.copied_to,
    }


def _count(count: StateCount) -> Mapping[str, int]:
    return {"batches": count.batches, "rows": count.rows}


def ledger_document(entry: Any) -> dict[str, Any]:
    """An account of a run, for --json."""
    names = ("run_id", "target", "table", "staged_rows", "key_changes", "winners", "superseded", "written", "stale")
    return {name: getattr(entry, name) for name in (*names, "absent", "equal", "quarantined")} | {
        "problems": list(entry.problems())
    }
