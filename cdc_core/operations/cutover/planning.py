"""What a cutover would do, before anything is done."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from cdc_core.errors import LockstepError, to_document
from cdc_core.operations.check.findings import CheckFinding
from cdc_core.operations.cutover.cutover_report import expected_stop
from cdc_core.operations.cutover.preparing import findings_of, known, require_hooks
from cdc_core.operations.cutover.proof import Since, prover
from cdc_core.operations.cutover.readiness import failed
from cdc_core.operations.cutover.work import CutoverWork, Tables, tables_of


@dataclass(frozen=True, slots=True)
class CutoverPlan:
    """evidence: when the oldest verification of every row that counts ended; None: the cutover begins with one.
    disturbed: what speaks against earlier evidence. stop: how `expected_stop_s` is known, for people."""

    pipeline: str
    target: str
    tables: Tables
    way_back: str
    evidence: str | None
    disturbed: str
    budget_s: float
    expected_stop_s: float | None
    stop: str
    findings: tuple[CheckFinding, ...]

    @property
    def error(self) -> LockstepError | None:
        """What would stop the cutover."""
        return failed(self.findings)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "pipeline": self.pipeline,
            "target": self.target,
            "tables": list(self.tables.logical),
            "leaves": {name: [".".join(table) for table in tables] for name, tables in self.tables.sources.items()},
            "comes_to": {name: [".".join(table) for table in tables] for name, tables in self.tables.targets.items()},
            "way_back": self.way_back,
            "evidence": self.evidence,
            "disturbed": self.disturbed or None,
            "budget_s": self.budget_s,
            "expected_stop_s": self.expected_stop_s,
            "findings": [
                {"status": finding.status, "subject": finding.subject, "what": finding.what, "remedy": finding.remedy}
                for finding in self.findings
            ],
        }
        return document if self.error is None else document | to_document(self.error)


def plan(work: CutoverWork) -> CutoverPlan:
    """Raises what keeps a cutover from being planned at all: missing hooks, tables that cannot be carried back."""
    require_hooks(work)
    work.way_back.check()
    with ExitStack() as stack:
        provers = [stack.enter_context(prover(work.jobs[target.name])) for target in work.targets]
        tables = tables_of(work, provers)
        feeding = {target.name: set(proving.feeding) for target, proving in zip(work.targets, provers, strict=True)}
    findings = tuple(finding for finding in findings_of(work, tables) if finding.status != "ok")
    before = known(work)
    expected_s, stop = expected_stop(work.meta.cutovers.latest(work.opened.name))
    ended = []
    for target, evidence in before.evidence.items():
        whole = evidence.document is not None and Since.of_evidence(evidence.document).tables >= feeding[target]
        ended.append(str(evidence.document["ended"]) if evidence.document is not None and whole else "")
    return CutoverPlan(
        work.opened.name,
        ", ".join(target.name for target in work.targets),
        tables,
        work.way_back.name,
        min(ended) or None,
        before.why,
        work.options.budget_s,
        expected_s,
        stop,
        findings,
    )
