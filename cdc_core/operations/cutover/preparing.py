"""What must be true before a cutover begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.errors import LockstepError, UsageError
from cdc_core.model.position import Position
from cdc_core.operations.check.findings import CheckFinding, Findings
from cdc_core.operations.cutover.catching_up import catch_up
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.proof import Since, verify_again
from cdc_core.operations.cutover.readiness import failed, look, look_back
from cdc_core.operations.cutover.unstaged import StagedTables
from cdc_core.operations.cutover.valid_evidence import found_since, lacking
from cdc_core.operations.cutover.work import CutoverWork, Tables
from cdc_core.operations.user_command import require_callable
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.verifier import verify_target
from cdc_core.operations.verify.verify_job import config_digest
from cdc_core.targets.bookkeeping.indexes import settle, with_due


def require_hooks(work: CutoverWork) -> None:
    """Raises UsageError (config.invalid), Refused (hook.missing) for what cannot be called."""
    if work.options.switch_with is None:
        raise UsageError(
            "The pipeline does not say how the application is switched.",
            where=f"{work.opened.name}: cutover.switch_with",
            code="config.invalid",
            remedy="name a command in the pipeline file, as in cutover: {switch_with: ./switch.sh}; "
            "docs/move.md says what it gets and returns",
        )
    for name in ("switch_with", "stop_with"):
        if (hook := getattr(work.options, name)) is not None:
            require_callable(hook, f"cutover.{name}")


@dataclass(frozen=True, slots=True)
class Evidence:
    """document: of a full verification that counts; None: there is none. why: what speaks against the latest one, for
    people; "" if it is only missing or old."""

    document: Mapping[str, Any] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the targets before anything is done. evidence: by target; where it has no document, every row is
    verified first. seen: as `Disturbed.seen`."""

    evidence: Mapping[str, Evidence]
    seen: Mapping[str, Position] | None

    @property
    def why(self) -> str:
        """What speaks against earlier evidence, for people; "" for nothing."""
        return next((one.why for one in self.evidence.values() if one.why), "")


@dataclass(frozen=True, slots=True)
class Prepared:
    """since: what each target is proven to have. seen: as `Disturbed.seen`, from before that was verified."""

    since: Mapping[str, Since]
    seen: Mapping[str, Position] | None


def known(work: CutoverWork) -> Known:
    """For a way back: reads the log of the old tables up to now."""
    disturbed = work.way_back.disturbed()
    found = {
        target.name: Evidence(None, disturbed.why) if disturbed.why else _earlier(work, target)
        for target in work.targets
    }
    return Known(found, disturbed.seen)


def _earlier(work: CutoverWork, target: MysqlTarget) -> Evidence:
    """What was verified before, unless it does not count, or rows may have changed since then unseen."""
    summaries = work.meta.verifications.evidence(target.name)
    led = work.meta.cutovers.latest(work.way_back.name)
    since_us = (led.at_us(State.SWITCHED) if led is not None else None) or 0
    definition = config_digest(work.pipeline)
    if lacking(summaries, work.options.evidence, work.meta.now_us(), since_us=since_us, definition=definition):
        return Evidence(None, found_since(summaries))
    document = evidence.read(work.opened.store, summaries[Mode.ORDERED]["path"])
    staged = StagedTables(work.pipeline, [target], work.meta)
    why = staged.missed(Since.of_evidence(document).places, work.opened.store)
    return Evidence(None if why else document, why)


def prepare(work: CutoverWork) -> Prepared:
    """What each target is proven to have, verified now if the evidence is missing or old.

    Raises Refused (table.not_captured, cutover.copy_due), DataAtRisk (verify.differs), and what verifying raises.
    """
    for error in unproven(work):
        raise error
    before = known(work)
    if before.why:
        work.opened.progress.note(f"no earlier evidence counts: {before.why}")
    found = {}
    for target in work.targets:
        earlier = before.evidence[target.name].document
        found[target.name] = verified(work, target) if earlier is None else Since.of_evidence(earlier)
    return Prepared(found, before.seen)


def unproven(work: CutoverWork) -> list[LockstepError]:
    """Tables of which nothing can be proven before somebody has acted: of this pipeline, and of the one in the other
    direction, where that one exists. A copy that is due there waits until that one may write again."""
    other = work.way_back.preview()
    return [
        *StagedTables(work.pipeline, work.targets, work.meta).refused(),
        *StagedTables(other, other.databases, work.meta).not_captured(),
    ]


def undisturbed(work: CutoverWork, seen: Mapping[str, Position] | None) -> Mapping[str, Position] | None:
    """Up to where the log of the old tables has nothing but changes of rows, from where it was looked at last.

    Raises Refused (cutover.verify_again), and what reading the log raises.
    """
    if seen is None:
        return None
    disturbed = work.way_back.disturbed(seen)
    if disturbed.why:
        raise verify_again(
            f"The rows of the old tables are not known: {disturbed.why}.",
            work.opened.name,
            "Begin again: every row is verified first",
        )
    return disturbed.seen


def require_unrefuted(work: CutoverWork) -> None:
    """No verification has found a difference since the cutover began, in a row that need not have changed since the
    evidence: the proof would not compare it. Raises Refused (cutover.verify_again)."""
    for target in work.targets:
        why = found_since(work.meta.verifications.evidence(target.name))
        if why:
            raise verify_again(
                f"The evidence of {target.name!r} no longer counts: {why}.",
                work.opened.name,
                "Repair what differs (`lockstep repair`), then begin again: every row is verified first",
            )


def verified(work: CutoverWork, target: MysqlTarget) -> Since:
    """Compares every row now. Raises what speaks against the target."""
    work.opened.progress.note(
        f"{target.name}: verifying every row first; the evidence is missing, old, or of other rules or tables"
    )
    catch_up(work)  # a way back may not have run yet, and what is applied need not be judged by the log
    report = verify_target(work.opened, target.name)
    if report.error is not None:
        raise report.error
    return Since.of_evidence(evidence.read(work.opened.store, report.path))


def findings_of(work: CutoverWork, tables: Tables) -> tuple[CheckFinding, ...]:
    """What would go wrong: see readiness.py, and `unproven`."""
    findings = Findings()
    for error in unproven(work):
        findings.fail("stage", error)
    names = [target.name for target in work.pipeline.targets]
    if len(names) > 1 and not work.back:
        findings.warn(
            "cutover.switch_with",
            f"the pipeline has the targets {', '.join(names)}, and one command",
            "make sure that the command leads the application to the target in LOCKSTEP_CUTOVER_TARGET",
        )
    for table in with_due(tables.targets):
        findings.warn(
            f"table {table.name}",
            "indexes that were dropped before its first load are due",
            "the next run builds them, or the cutover before it begins",
        )
    return (*findings.made, *look(tables.pairs), *look_back(work.way_back.preview()))


def require_ready(work: CutoverWork, tables: Tables) -> list[dict[str, str]]:
    """What the application should know, as `lockstep cutover plan` shows it; the new tables have all of their indexes
    then, and keep them. Raises the first of what would go wrong, and what indexes.settle raises."""
    settle(tables.targets)
    findings = findings_of(work, tables)
    for finding in findings:
        if finding.status == "warn":
            work.opened.progress.note(f"{finding.subject}: {finding.what}")
    error = failed(findings)
    if error is not None:
        raise error
    return [
        {"status": finding.status, "subject": finding.subject, "what": finding.what, "remedy": finding.remedy}
        for finding in findings
        if finding.status != "ok"
    ]
