"""What is said of a catalog that does not answer."""

from __future__ import annotations

import traceback

import pytest
from sqlalchemy.exc import OperationalError

from cdc_core.config import IcebergTarget
from cdc_core.errors import RetryLater
from cdc_core.lake.catalogs import catalog_answers


@pytest.mark.parametrize("said", ["postgresql://me:p%40ss@host/db", "p%40ss", "p@ss"])
def test_no_secret_of_the_catalog_is_shown(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "postgresql://me:p%40ss@host/db")
    target = IcebergTarget.model_validate(
        {"name": "lake", "kind": "iceberg", "catalog": {"type": "sql", "uri": "env:LAKE"}, "namespace": "ns",
         "tables": {"*": {}}}
    )  # fmt: skip
    with pytest.raises(RetryLater) as refused, catalog_answers(target):
        raise OperationalError(f"no answer from {said}", None, Exception(said))
    shown = "".join(traceback.format_exception(refused.value))
    assert "<uri>" in str(refused.value)
    assert not any(secret in shown for secret in ("p%40ss", "p@ss"))
