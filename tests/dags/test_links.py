"""The address behind the button that leads from a task to its run's ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep_airflow.links import LedgerLink

RUN = SimpleNamespace(dag_id="cdc_shop_replay", run_id="manual__2026-11-21T04:00:00+00:00")
LEDGER = "ledger/shop/shop_replay-manual__2026-11-21T04-00-00-00-00"


@pytest.mark.parametrize(
    ("airflow", "page"),
    [
        ("https://example.org", "https://example.org/plugin/lockstep/lockstep/"),
        (
            "https://example.org/data/airflow/",
            "https://example.org/data/airflow/plugin/lockstep/data/airflow/lockstep/",
        ),
        ("", "/plugin/lockstep/lockstep/"),
    ],
    ids=["at the root", "below a path", "not told"],
)
def test_it_names_the_run_as_meta_does_and_the_place_where_airflow_is(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, airflow: str, page: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", airflow)
    operator = SimpleNamespace(file=str(write_pipeline("shop")))
    assert LedgerLink().get_link(operator, ti_key=RUN) == page + LEDGER
