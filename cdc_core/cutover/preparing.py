"""What must be true before a cutover begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc_core.config import Target
from cdc_core.cutover.proof import Since
from cdc_core.cutover.readiness import failed, look
from cdc_core.cutover.work import Disturbed, Tables, Work
from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.position import Position


def require_hooks(work: Work) -> None:
    """Raises UsageError (cutover.no_hook)."""
    if work.options.switch_with is None:
        raise UsageError(
            "Nothing says how the application is switched.",
            where=f"{work.pipeline.pipeline}: cutover.switch_with",
            code="cutover.no_hook",
            remedy="name a command in the pipeline file, as in cutover: {switch_with: ./switch.sh}; "
            "docs/move.md says what it is told, and what it answers",
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the targets before anything is done. evidence: by target, of a full verification that counts;
    None: every row is verified first."""

    evidence: Mapping[str, Mapping[str, Any] | None]
    disturbed: Disturbed


@dataclass(frozen=True, slots=True)
class Prepared:
    """since: what each target is proven to have. seen: as `Disturbed.seen`, from before that was verified."""

    since: Mapping[str, Since]
    seen: Mapping[str, Position] | None


def known(work: Work) -> Known:
    """Of a way back, reads the log of the old tables up to now."""
    disturbed = work.way_back.disturbed()
    found = {one.name: None if disturbed.why else work.hands.newest_evidence(one.name) for one in work.targets}
    return Known(found, disturbed)


def prepare(work: Work) -> Prepared:
    """What each target is proven to have, verified now if the evidence is missing or old.

    Raises DataAtRisk (cutover.not_equal), and what verifying raises.
    """
    before = known(work)
    if before.disturbed.why:
        work.told(f"no earlier evidence counts: {before.disturbed.why}")
    found = {}
    for target in work.targets:
        evidence = before.evidence[target.name]
        found[target.name] = verified(work, target) if evidence is None else Since.of_evidence(evidence)
    return Prepared(found, before.disturbed.seen)


def undisturbed(work: Work, seen: Mapping[str, Position] | None) -> Mapping[str, Position] | None:
    """Up to where the log of the old tables has nothing but changes of rows, from where it was looked at last.

    Raises Refused (cutover.verify_again), and what reading the log raises.
    """
    if seen is None:
        return None
    found = work.way_back.disturbed(seen)
    if found.why:
        raise Refused(
            f"Nobody knows which rows the old tables have: {found.why}.",
            where=work.pipeline.pipeline,
            code="cutover.verify_again",
            remedy="nothing was switched. Begin again: every row is verified first",
        )
    return found.seen


def verified(work: Work, target: Target) -> Since:
    work.told(f"{target.name}: verifying every row first; the evidence is missing, old, or of other rules or tables")
    work.hands.catch_up()  # a way back may not have run yet, and what is applied need not be judged by the log
    evidence = work.hands.verify(target.name)
    if evidence["equal"] is not True:
        raise DataAtRisk(
            f"The full verification of {target.name!r} has not found all tables equal.",
            where=target.name,
            code="cutover.not_equal",
            remedy="see `lockstep verify --show`; repair what differs (`lockstep repair`), then begin again",
        )
    return Since.of_evidence(evidence)


def require_ready(work: Work, tables: Tables) -> list[dict[str, str]]:
    """What the application should know, as `lockstep cutover plan` shows it. Raises the first of what would go
    wrong."""
    findings = look(tables.pairs, work.way_back.preview(), work.options.budget_s, work.environ)
    for one in findings:
        if one.status == "warn":
            work.told(f"{one.subject}: {one.what}")
    error = failed(findings)
    if error is not None:
        raise error
    return [
        {"status": one.status, "subject": one.subject, "what": one.what, "remedy": one.remedy}
        for one in findings
        if one.status != "ok"
    ]
