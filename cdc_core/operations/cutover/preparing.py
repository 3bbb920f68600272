"""What must be true before a cutover begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_core.config import Target
from cdc_core.errors import DataAtRisk, LockstepError, UsageError
from cdc_core.model.position import Position
from cdc_core.model.windows import parse_moment, to_us
from cdc_core.operations.check.findings import CheckFinding, Findings
from cdc_core.operations.cutover.catching_up import catch_up
from cdc_core.operations.cutover.cutover_states import State
from cdc_core.operations.cutover.hooks import require_callable
from cdc_core.operations.cutover.proof import Since, verify_again
from cdc_core.operations.cutover.readiness import failed, look
from cdc_core.operations.cutover.unstaged import StagedTables
from cdc_core.operations.cutover.valid_evidence import Evidence, newest_evidence, verified_now
from cdc_core.operations.cutover.work import CutoverWork, Tables
from cdc_core.targets.bookkeeping.indexes import settle, with_due


def require_hooks(work: CutoverWork) -> None:
    """Raises UsageError (config.invalid), Refused (hook.missing) for what cannot be called."""
    if work.options.switch_with is None:
        raise UsageError(
            "The pipeline does not say how the application is switched.",
            where=f"{work.opened.name}: cutover.switch_with",
            code="config.invalid",
            remedy="name a command or a function in the pipeline file, as in cutover: {switch_with: ./switch.sh}; "
            "docs/move.md says what it gets and returns",
        )
    for hook in (work.options.switch_with, work.options.stop_with):
        if hook is not None:
            require_callable(hook, work.opened.environ)


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
    """Of a way back, reads the log of the old tables up to now."""
    disturbed = work.way_back.disturbed()
    found = {
        one.name: Evidence(None, disturbed.why) if disturbed.why else _not_outdated(work, one) for one in work.targets
    }
    return Known(found, disturbed.seen)


def _not_outdated(work: CutoverWork, target: Target) -> Evidence:
    """The newest evidence, unless rows may have changed since then unseen."""
    found = newest_evidence(work, target.name)
    led = work.meta.cutovers.latest(work.way_back.name)
    came_us = led.at_us(State.SWITCHED) if led is not None else None
    if found.document is None or to_us(parse_moment(found.document["ended"])) < (came_us or 0):
        return Evidence(None, found.why)  # when it was made, the application wrote elsewhere
    staged = StagedTables(work.pipeline, [target], work.meta)
    why = staged.missed(Since.of_evidence(found.document).places, work.opened.store)
    return Evidence(None, why) if why else found


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
        evidence = before.evidence[target.name].document
        found[target.name] = verified(work, target) if evidence is None else Since.of_evidence(evidence)
    return Prepared(found, before.seen)


def unproven(work: CutoverWork) -> list[LockstepError]:
    """Tables of which nothing can be proven before somebody has acted: of this pipeline, and of the one in the other
    direction, where that one exists. A copy that is due there waits until that one may write again."""
    other = work.way_back.preview()
    return [
        *StagedTables(work.pipeline, work.targets, work.meta).refused(),
        *StagedTables(other, other.targets, work.meta).not_captured(),
    ]


def undisturbed(work: CutoverWork, seen: Mapping[str, Position] | None) -> Mapping[str, Position] | None:
    """Up to where the log of the old tables has nothing but changes of rows, from where it was looked at last.

    Raises Refused (cutover.verify_again), and what reading the log raises.
    """
    if seen is None:
        return None
    found = work.way_back.disturbed(seen)
    if found.why:
        raise verify_again(
            f"The rows of the old tables are not known: {found.why}.",
            work.opened.name,
            "Begin again: every row is verified first",
        )
    return found.seen


def require_unrefuted(work: CutoverWork) -> None:
    """No verification has found a difference since the cutover began, in a row that need not have changed since the
    evidence: the proof would not compare it. Raises Refused (cutover.verify_again)."""
    for one in work.targets:
        why = newest_evidence(work, one.name).why
        if why:
            raise verify_again(
                f"The evidence of {one.name!r} no longer counts: {why}.",
                work.opened.name,
                "Repair what differs (`lockstep repair`), then begin again: every row is verified first",
            )


def verified(work: CutoverWork, target: Target) -> Since:
    work.opened.progress.note(
        f"{target.name}: verifying every row first; the evidence is missing, old, or of other rules or tables"
    )
    catch_up(work)  # a way back may not have run yet, and what is applied need not be judged by the log
    evidence = verified_now(work, target.name)
    if evidence["equal"] is not True:
        raise DataAtRisk(
            f"The full verification of {target.name!r} found differences.",
            where=target.name,
            code="verify.differs",
            remedy="see `lockstep verify --show`, repair what differs (`lockstep repair`), then begin again",
        )
    return Since.of_evidence(evidence)


def findings_of(work: CutoverWork, tables: Tables) -> tuple[CheckFinding, ...]:
    """What would go wrong: see readiness.py, and `unproven`."""
    found = Findings()
    for error in unproven(work):
        found.fail("stage", error)
    names = [one.name for one in work.pipeline.targets if not one.replay_only]
    if len(names) > 1 and not work.back:
        found.warn(
            "cutover.switch_with",
            f"the pipeline has the targets {', '.join(names)}, and one command",
            "make sure that the command leads the application to the target in LOCKSTEP_CUTOVER_TARGET",
        )
    for one in with_due(tables.targets, work.opened.environ):
        found.warn(
            f"table {one.name}",
            "indexes that were dropped before its first load are due",
            "the next run builds them, or the cutover before it begins",
        )
    return (*found.made, *look(tables.pairs, work.way_back.preview(), work.opened.environ))


def require_ready(work: CutoverWork, tables: Tables) -> list[dict[str, str]]:
    """What the application should know, as `lockstep cutover plan` shows it; the new tables have all of their indexes
    then, and keep them. Raises the first of what would go wrong, and what indexes.settle raises."""
    settle(tables.targets, work.opened.environ)
    findings = findings_of(work, tables)
    for one in findings:
        if one.status == "warn":
            work.opened.progress.note(f"{one.subject}: {one.what}")
    error = failed(findings)
    if error is not None:
        raise error
    return [
        {"status": one.status, "subject": one.subject, "what": one.what, "remedy": one.remedy}
        for one in findings
        if one.status != "ok"
    ]
