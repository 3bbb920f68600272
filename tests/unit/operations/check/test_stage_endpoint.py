"""`check` warns of a bucket that is reached in plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.operations.check import check
from tests.lab.made_line import pipeline


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("http://0.0.0.0:9", True),
        ("https://0.0.0.0:9", False),
        ("http://127.0.0.1:9", False),
        ("http://[::1]:9", False),
    ],
)
def test_a_bucket_in_plain_text_beyond_loopback_is_warned_of(
    endpoint: str, warned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cdc_core.operations.check.check_writable", lambda store: None)
    asked = pipeline(tmp_path, stage={"uri": "s3://b/p", "s3_endpoint": endpoint}, targets=[])
    findings = [finding for finding in check(asked).findings if finding.subject == "stage" and finding.status == "warn"]
    assert ["plain text" in finding.what for finding in findings] == [True] * warned
