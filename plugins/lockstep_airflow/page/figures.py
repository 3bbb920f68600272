"""The figures of the pipelines folder as one plain document: the JSON answer, from which the page is rendered too.

Keeps true: whatever is wrong with one pipeline is in its own entry, and the others are complete. Opens meta
databases only to read, and creates none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdc_core import config
from cdc_core.errors import InternalError, LockstepError, to_document
from cdc_core.meta import Meta, RunState
from cdc_core.meta.health import Level, Problem, retention_left_s
from cdc_core.model.readable import moment
from cdc_core.model.run_plan import plan_folder, quality_folder, quality_report
from cdc_core.model.windows import to_us
from cdc_core.operations.cutover.cutover_report import cutover_document
from cdc_core.operations.status_report import ledger_document, problem_document, report_of, run_document
from lockstep_airflow.page import airflow_state
from lockstep_airflow.pipelines import read_folder
from lockstep_airflow.run_context import run_name_of
from lockstep_airflow.specs import snapshot_dag_id_of

if TYPE_CHECKING:
    from cdc_core.meta import BatchRow, LedgerRow, RunRow
    from cdc_core.meta.overviews import Account
    from lockstep_airflow.specs import DagSpec

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long a meta database may be busy, or fail to answer."""
_AT_ONCE = 8
"""Meta databases asked at once: one that does not answer must not hold up the others."""
_SUMMED = ("staged_rows", "key_changes", "winners", "superseded", "written", "equal", "stale", "absent", "quarantined")


def figures(
    folder: Path, may_read: Callable[[str], bool], may_trigger: Callable[[str], bool], *, with_broken: bool
) -> dict[str, Any]:
    """{now, folder, pipelines: [...], broken: [...]}.

    may_read:    whether the user may read the DAG of this id; its pipeline is left out if not.
    may_trigger: whether the user may start runs of the DAG of this id.
    with_broken: whether unusable pipeline files are listed, with their errors.
    """
    found = read_folder(folder)
    of_file: dict[str, list[DagSpec]] = {}
    for spec in found.specs:
        of_file.setdefault(spec.file, []).append(spec)
    asked = [specs for specs in of_file.values() if may_read(specs[0].dag_id)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        entries = list(pool.map(lambda specs: _entry(specs[0], _read), asked))
    states = airflow_state.dags([spec.dag_id for specs in asked for spec in specs])
    for entry, specs in zip(entries, asked, strict=True):
        _add_airflow(entry, [spec.dag_id for spec in specs], states)
    return {
        "now": moment(to_us(datetime.now(UTC))),
        "folder": str(folder),
        "pipelines": [
            entry | {"trigger": _triggers(specs, may_trigger)} for entry, specs in zip(entries, asked, strict=True)
        ],
        "broken": [to_document(error)["error"] for error in found.errors] if with_broken else [],
    }


def ledger(folder: Path, pipeline: str, run_id: str) -> dict[str, Any] | None:
    """{pipeline, dag_id, file, error, run} of one run; `run` is None for one that was never planned.

    None if the folder has no such pipeline.
    """

    def read(parsed: config.Pipeline) -> dict[str, Any]:
        with _meta(parsed) as meta:
            account = meta.overviews.account(run_id)
        if account is None or account.run.pipeline != pipeline:
            return {"run": None, "runs": [], "problems": []}
        document = account_document(account, parsed.stage)
        return {"run": document, "runs": [document], "problems": [], **_judged(parsed, account)}

    specs = [spec for spec in read_folder(folder).specs if spec.pipeline == pipeline]
    if not specs:
        return None
    entry = _entry(specs[0], read)
    _add_airflow(entry, [spec.dag_id for spec in specs], {})
    return entry


def _judged(pipeline: config.Pipeline, account: Account) -> dict[str, Any]:
    """{verdicts, unread}: what the checks found, or why it could not be read: this host may not reach the stage."""
    try:
        return {"verdicts": verdicts(pipeline, account), "unread": ""}
    except LockstepError as error:
        return {"verdicts": {}, "unread": error.what}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"verdicts": {}, "unread": f"{type(error).__name__}: {error}"}


def _triggers(specs: Sequence[DagSpec], may_trigger: Callable[[str], bool]) -> dict[str, Any]:
    """For a DAG's first task (extract, copy_plan, replan, ...): its id, the targets that a run of it can name, and
    whether it repairs by default."""
    return {
        spec.tasks[0].kind.value: {
            "dag_id": spec.dag_id,
            "targets": list(spec.targets),
            "repair": any(task.on for task in spec.tasks),
        }
        for spec in specs
        if may_trigger(spec.dag_id)
    }


def _entry(spec: DagSpec, read: Callable[[config.Pipeline], dict[str, Any]]) -> dict[str, Any]:
    """What is read of a pipeline, or why it cannot be read."""
    file = Path(spec.file)
    entry: dict[str, Any] = {"pipeline": spec.pipeline, "dag_id": spec.dag_id, "file": spec.file, "error": None}
    try:
        return entry | read(config.load(file))
    except LockstepError as error:
        failed = error
    except Exception as error:
        log.exception("the page's figures of pipeline %s", spec.pipeline)
        failed = InternalError(
            f"{type(error).__name__}: {error}",
            where=str(file),
            remedy="report the traceback in the web server's log; the page does not affect the pipeline itself",
        )
    said = to_document(failed)["error"]
    problem = said | {"level": "failed", "subject": "meta", "since": "", "times": 1}
    return entry | {"error": said, "problems": [problem], "attention": [failed.what]}


def _meta(pipeline: config.Pipeline) -> Meta:
    return Meta.open(
        pipeline.meta.url, pipeline.pipeline, create=False, busy_timeout_s=PATIENCE_S, answer_timeout_s=PATIENCE_S
    )


def _read(pipeline: config.Pipeline) -> dict[str, Any]:
    with _meta(pipeline) as meta:
        targets = [target.name for target in pipeline.targets]
        seen = meta.overviews.find(targets, pipeline.windows)
        switched = meta.cutovers.latest(pipeline.pipeline)
        moved = None if switched is None else cutover_document(meta, switched, pipeline.cutover)
    document = report_of(pipeline, seen.status).to_json()
    start_us, end_us = pipeline.windows.containing(seen.status.now_us)
    left = {source.source: retention_left_s(source, seen.status.now_us) for source in seen.status.sources}
    lags_us = [source.lag_us for source in seen.status.sources]
    partial = {
        logical for source in seen.status.sources for covered in source.partial.values() for logical in covered.feeds
    }
    document |= {
        "schedule": pipeline.schedule,
        "cutover": moved,
        "interval_s": (end_us - start_us) / 1e6,
        "sources": [source | {"log_kept_s": left.get(source["source"])} for source in document["sources"]],
        "tables": [
            {
                "table": table.table,
                "changed": moment(table.window_end_us),
                "rows": table.rows,
                "partial": table.table in partial,
                "applied": {target: moment(closed_us) for target, closed_us in sorted(table.applied.items())},
            }
            for table in seen.tables
        ],
        "copies": [
            {"source": source["source"], **copy} for source in document["sources"] for copy in source.get("copies", ())
        ],
        "ring_limit": {"items": pipeline.limits.ring_items, "size_bytes": pipeline.limits.ring_bytes},
        "lag_s": None if None in lags_us else max((lag for lag in lags_us if lag is not None), default=0) / 1e6,
        "batches": [_batch(batch) for batch in seen.batches],
        "windows": [
            {
                "window": [moment(window.start_us), moment(window.end_us)],
                "batches": window.batches,
                "rows": window.rows,
                "size_bytes": window.size_bytes,
            }
            for window in seen.windows
        ],
        "delays": _delays(seen.status.runs),
        "runs": [account_document(account, pipeline.stage) for account in seen.accounts],
    }
    return document | {"attention": [problem["what"] for problem in document["problems"]]}


def _delays(runs: Sequence[RunRow]) -> list[dict[str, Any]]:
    """For the latest committed runs, oldest first: the time from the end of the window to the commit. A backfill of a
    window long ago is not late."""
    return [
        {
            "run_id": run.run_id,
            "window": [moment(edge) for edge in run.window],
            "delay_s": max(0, run.updated_us - run.window[1]) / 1e6,
        }
        for run in reversed(runs)
        if run.window and run.state is RunState.COMMITTED and not (run.airflow_run_id or "").startswith("backfill__")
    ]


def _batch(batch: BatchRow) -> dict[str, Any]:
    return {
        "source": batch.source,
        "window": [moment(batch.window_start_us), moment(batch.window_end_us)],
        "begin": str(batch.begin),
        "end": str(batch.end),
        "epoch": batch.epoch,
        "events": batch.events,
        "transactions": batch.transactions,
        "rows": batch.rows,
        "size_bytes": batch.size_bytes,
        "notes": list(batch.notes),
        "created": moment(batch.created_us),
    }


def account_document(account: Account, stage: config.StageConfig) -> dict[str, Any]:
    """A run, and by target the sums of its ledgers, the ledgers, and the path of the report of its checks; no sums for
    a target that it has not committed."""
    targets = []
    root = plan_folder(account.run.plan_path)
    for target in account.targets:
        rows = [row for row in account.ledgers if row.entry.target == target]
        targets.append(
            {
                "target": target,
                "sums": _sums(rows) if rows else None,
                "adds_up": not any(row.entry.problems() for row in rows) if rows else None,
                "ledgers": [ledger_document(row.entry) for row in rows],
                "report": f"{stage.uri.rstrip('/')}/{quality_report(quality_folder(root, target))}",
            }
        )
    return run_document(account.run) | {"targets": targets}


def _sums(rows: Sequence[LedgerRow]) -> dict[str, int]:
    return {name: sum(getattr(row.entry, name) for row in rows) for name in _SUMMED}


def _add_airflow(entry: dict[str, Any], dag_ids: Sequence[str], states: Mapping[str, airflow_state.DagState]) -> None:
    """Adds what Airflow knows: whether the DAG is switched off, a run that failed without an error, where runs are."""
    state = states.get(entry["dag_id"])
    entry["paused"] = state.paused if state is not None else None
    found = []
    if state is not None and state.paused:
        found.append(_paused(entry["dag_id"], "nothing is extracted or applied on schedule"))
    elif state is not None and state.failed_run is not None and "failed" not in {p["level"] for p in entry["problems"]}:
        what = f"The latest run of the DAG {entry['dag_id']} failed: {state.failed_run}."
        remedy = "read the log of the failed task, then clear that task"
        found.append(Problem(Level.FAILED, f"DAG {entry['dag_id']}", what, remedy=remedy))
    copying = snapshot_dag_id_of(entry["pipeline"])
    copied = copying not in states or not states[copying].paused
    if not copied and any(copy["state"] == "pending" for copy in entry.get("copies", ())):
        found.append(_paused(copying, "tables that lack rows from before their capture are not copied"))
    levels = list(Level)
    problems = [*map(problem_document, found), *entry["problems"]]
    entry["problems"] = problems = sorted(problems, key=lambda problem: levels.index(problem["level"]))
    entry["attention"] = [problem["what"] for problem in problems]
    entry["health"] = problems[0]["level"] if problems else "ok"
    for run in entry.get("runs", ()):
        run["link"] = _link(entry["pipeline"], run, dag_ids)


def _paused(dag_id: str, so: str) -> Problem:
    return Problem(
        Level.PAUSED, f"DAG {dag_id}", f"The DAG {dag_id} is paused: {so}.", remedy="switch it on in Airflow"
    )


def _link(pipeline: str, run: Mapping[str, Any], dag_ids: Sequence[str]) -> str | None:
    """The path to the DAG run that a run of Lockstep belongs to; None for one of the command line."""
    airflow_run_id = run["airflow_run_id"]
    if airflow_run_id is None:
        return None
    of = (dag_id for dag_id in dag_ids if run_name_of(pipeline, dag_id, airflow_run_id) == run["run_id"])
    dag_id = next(of, None)
    return None if dag_id is None else f"dags/{quote(dag_id)}/runs/{quote(airflow_run_id, safe='')}"


def verdicts(pipeline: config.Pipeline, account: Account) -> dict[str, list[dict[str, Any]]]:
    """What the checks of a run found, by target, without the example rows."""
    from cdc_core.stage.stores import open_stage

    store = open_stage(pipeline.stage)
    found: dict[str, list[dict[str, Any]]] = {}
    for target in account.targets:
        folder = f"{quality_folder(plan_folder(account.run.plan_path), target)}/"
        for info in store.list(folder):
            if info.path.endswith(".json"):
                verdict = json.loads(store.get(info.path))
                found.setdefault(target, []).append(
                    {
                        "name": info.path.removeprefix(folder).removesuffix(".json"),
                        "rows": verdict.get("rows", 0),
                        "success": bool(verdict.get("success")),
                        "expectations": [
                            {
                                "expectation": expectation["expectation"],
                                "arguments": ", ".join(
                                    f"{name}={value}" for name, value in expectation["arguments"].items()
                                ),
                                "severity": expectation["severity"],
                                "success": bool(expectation["success"]),
                            }
                            for expectation in verdict.get("expectations", ())
                        ],
                    }
                )
    return found
