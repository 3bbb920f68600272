"""What must be true before a cutover begins."""

from __future__ import annotations

from cdc_core.config import Target
from cdc_core.cutover.proof import Since
from cdc_core.cutover.readiness import failed, look
from cdc_core.cutover.work import Tables, Work
from cdc_core.errors import DataAtRisk, UsageError


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


def prepare(work: Work) -> dict[str, Since]:
    """What each target is proven to have, verified now if the evidence is missing or old.

    Raises DataAtRisk (cutover.not_equal), and what verifying raises.
    """
    found, disturbed = {}, work.way_back.disturbed()
    if disturbed:
        work.told(f"no earlier evidence counts: {disturbed}")
    for target in work.targets:
        evidence = None if disturbed else work.hands.newest_evidence(target.name)
        found[target.name] = verified(work, target) if evidence is None else Since.of_evidence(evidence)
    return found


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
    findings = look(tables.pairs, work.way_back.preview(), work.environ)
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
