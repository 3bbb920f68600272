"""Which evidence counts for a cutover (cdc_core/operations/cutover/valid_evidence.py)."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.meta import Cutover
from cdc_core.operations.cutover.cutover_report import way_back_document
from cdc_core.operations.cutover.valid_evidence import ended_us, lacking
from tests.lab.made_batches import HOUR_US, START_US, manifest
from tests.lab.made_line import Line

FULL: dict[str, Any] = {
    "started": "2026-11-20T00:00:00+00:00",
    "ended": "2026-11-20T01:00:00+00:00",
    "config_sha256": "a",
    "all_tables": True,
    "equal": True,
    "differences": 0,
}
NOW_US = ended_us(FULL) + HOUR_US


@pytest.mark.parametrize(
    ("evidence", "options", "why"),
    [
        ({"ordered": FULL}, {}, ""),
        ({"ordered": FULL}, {"definition": "a"}, ""),
        ({"random": FULL}, {}, "never verified"),
        ({"ordered": FULL | {"equal": None}}, {}, "not equal"),
        ({"ordered": FULL | {"all_tables": False}}, {}, "not every table was verified"),
        ({"ordered": FULL}, {"since_us": ended_us(FULL) + 1}, "not verified since the switch"),
        ({"ordered": FULL}, {"oldest": "59m"}, "too old (cutover.evidence: 59m)"),
        ({"ordered": FULL}, {"definition": "b"}, "the pipeline file was another"),
        (
            {"ordered": FULL, "random": FULL | {"ended": "2026-11-20T01:00:01+00:00", "differing": {"t": 2}}},
            {},
            "2 rows of t were found to differ",
        ),
    ],
)
def test_a_full_verification_counts_unless_one_of_these_speaks_against_it(
    evidence: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    oldest = options.pop("oldest", "60m")
    assert lacking(evidence, oldest, NOW_US, **{"since_us": 0} | options) == why


@pytest.mark.parametrize(
    ("changed", "why"),
    [({}, ""), ({"all_tables": False}, "t: not every table was verified"), ({"equal": False}, "t: not equal")],
)
def test_a_way_back_is_not_ready_by_evidence_that_its_cutover_would_not_take(
    line: Line, changed: dict[str, Any], why: str
) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.done("first")
    lease = line.meta.leases.acquire("verify:t", "a test", 60)
    line.meta.verifications.finish(lease, "t", "ordered", FULL | changed)
    said = way_back_document(line.meta, Cutover("c1", "there", "line", "WATCH"), "100000d")["said"]
    assert said.endswith(why or " old")
