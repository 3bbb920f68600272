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


def health(found: Status, pipeline: Pipeline) -> tuple[Problem, ...]:
    """The problems of a pipeline, the worst first."""
    sources = [source.name for source in pipeline.sources]
    left = [left_alone(cutover, stops=pipeline.cutover.stop_with is not None) for cutover in found.cutovers]
    return (
        *filter(None, left),
        *problems(
            found,
            pipeline.windows,
            sources,
            [target.name for target in pipeline.targets],
        ),
    )


def problem_document(one: Problem) -> dict[str, Any]:
    """A problem, for --json and for the page in Airflow."""
    return {
        "level": one.level.value,
        "subject": one.subject,
        "what": one.what,
        "where": one.where,
        "remedy": one.remedy,
        "code": one.code,
        "class": one.exit_class,
        "since": moment(one.since_us),
        "times": one.times,
    }


def status_document(found: Status, waiting: Sequence[str]) -> dict[str, Any]:
    """The figures of a pipeline, for --json and for the page in Airflow. waiting: sources never extracted."""
    return {
        "pipeline": found.pipeline,
        "now": moment(found.now_us),
        "complete_to": moment(found.watermark_us),
        "sources": [_source(source) for source in found.sources]
        + [{"source": name, "position": None} for name in waiting],
        "targets": [
            {
                "target": target.target,
                "pending": _count(target.pending),
                "open": _count(target.waiting),
                "records": {state.value: _count(count) for state, count in target.records.items()},
                "last_error": target.last_error,
            }
            for target in found.targets
        ],
        "runs": [run_document(run) for run in found.runs],
        "verifications": [
            document for each in found.verifications for document in verification_documents(each, found.now_us)
        ],
    }


def verification_documents(one: Verification, now_us: int) -> list[dict[str, Any]]:
    """The latest evidence of each mode of a target, the newest first, for --json and for the page in Airflow; and the
    verification that is under way or was interrupted, without evidence."""
    found = [
        {"target": one.target, "mode": mode, **said, "age_s": round(now_us / 1e6 - _seconds(said["ended"]), 3)}
        for mode, said in one.evidence.items()
    ]
    found.sort(key=lambda said: str(said["ended"]), reverse=True)
    if one.progress:
        found.append({"target": one.target, "mode": "", "unfinished": moment(one.updated_us)})
    # The latest knows of all differences that were found; earlier ones may have been found gone since.
    earlier = [said | {"differing": {}} for said in found[1:]]
    return [said | {"verdict": verification_verdict(said)} for said in [*found[:1], *earlier]]


def verification_verdict(one: Mapping[str, Any]) -> str:
    """What a document of `verification_documents` says, for people."""
    if "unfinished" in one:
        return f"not finished; the last range was verified at {one['unfinished']}"
    verdict = _own_verdict(one)
    differing = one.get("differing", {})
    known = sum(differing.values())
    if known > one.get("differences", known):
        verdict += f"; {known:,} with those of earlier verifications, in {', '.join(sorted(differing))}"
    return verdict


def _own_verdict(one: Mapping[str, Any]) -> str:
    if "why" in one:
        return str(one["why"])
    if one["differences"]:
        return f"{counted(one['differences'], 'difference')}"
    if one["not_compared"]:
        return f"{counted(one['not_compared'], 'table')} not compared"
    if one["unsettled"]:
        return f"{counted(one['unsettled'], 'row')} unsettled"
    return _VERDICTS[one["mode"]]


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


def _source(one: SourceStatus) -> dict[str, Any]:
    return {
        "source": one.source,
        "position": one.checkpoint.position.to_json(),
        "gtid_set": one.checkpoint.gtid_set,
        "complete_to": moment(one.checkpoint.watermark_us),
        "lag_s": None if one.lag_us is None else one.lag_us / 1e6,
        "holder": one.holder,
        "ring": asdict(one.ring),
        "epoch": one.epoch,
        "batches": one.batches,
        "rows": one.rows,
        "size_bytes": one.size_bytes,
        "notes": list(one.notes),
        "retention_s": one.retention_s,
        "partial": {table: plain(covered) for table, covered in one.partial.items()},
        "copier": one.copier,
        "copies_paused": moment(one.copies_paused_us),
        "copies_paused_by": one.copies_paused_by,
        "copies": [copy_document(each) for each in one.copies],
    }


def copy_document(one: CopyStatus) -> dict[str, Any]:
    """A table with rows from before its capture, for --json and for the page in Airflow."""
    return {
        "table": one.table,
        "state": one.state.value,
        "why": one.why,
        "rows": one.rows,
        "rows_estimated": one.rows_estimated,
        "percent": one.percent,
        "bytes": one.size_bytes,
        "rows_per_s": None if one.rows_s is None else round(one.rows_s, 1),
        "started": moment(one.started_us),
        "updated": moment(one.updated_us),
        "copied_to": one.copied_to,
    }


def _count(count: StateCount) -> Mapping[str, int]:
    return {"batches": count.batches, "rows": count.rows}


def ledger_document(entry: Any) -> dict[str, Any]:
    """An account of a run, for --json."""
    names = ("run_id", "target", "table", "staged_rows", "key_changes", "winners", "superseded", "written", "stale")
    return {name: getattr(entry, name) for name in (*names, "absent", "equal", "quarantined")} | {
        "problems": list(entry.problems())
    }
