"""Which evidence of a verification counts for a cutover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc_core.model.windows import age_us, parse_moment, to_us
from cdc_core.operations.cutover.work import CutoverWork
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.modes import Mode, found_since
from cdc_core.operations.verify.verifier import verify_target
from cdc_core.operations.verify.verify_job import config_digest


@dataclass(frozen=True, slots=True)
class Evidence:
    """document: of a full verification that counts; None: there is none. why: what speaks against the latest one, for
    people; "" if it is only missing or old."""

    document: Mapping[str, Any] | None
    why: str = ""


def newest_evidence(work: CutoverWork, target: str) -> Evidence:
    """Of a full verification of this definition of the pipeline that found all tables equal, is not older than
    `cutover.evidence`, and was not followed by one that found something else."""
    verification = work.meta.verifications.find(target)
    summary = verification.evidence.get(Mode.ORDERED) if verification is not None else None
    if verification is None or summary is None:
        return Evidence(None)
    document = evidence.read(work.opened.store, summary["path"])
    age = work.meta.now_us() - to_us(parse_moment(document["ended"]))
    counts = (
        document["equal"] is True
        and document["all_tables"]
        and document["config_sha256"] == config_digest(work.pipeline)
        and age <= age_us(work.options.evidence)
    )
    found = found_since(verification.evidence)
    return Evidence(document if counts and not found else None, found)


def verified_now(work: CutoverWork, target: str) -> Mapping[str, Any]:
    """Compares every row; the evidence. Raises what speaks against it."""
    report = verify_target(work.opened, target)
    if report.error is not None:
        raise report.error
    return evidence.read(work.opened.store, report.path)
