"""What is said of a catalog that does not answer, or refuses."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from cdc_core.config import IcebergTarget
from cdc_core.errors import Refused, RetryLater, UsageError
from cdc_core.lake.catalogs import catalog_answers, open_catalog
from cdc_core.lake.commits import TableCommit, commit
from tests.lab.refusals import raises
from tests.lab.rest_catalog import RestCatalogServer


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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetTable"), Refused),
        (NoCredentialsError(), Refused),
        (ClientError({"Error": {"Code": "ThrottlingException", "Message": "no"}}, "GetTable"), RetryLater),
        (EndpointConnectionError(endpoint_url="https://glue"), RetryLater),
        (ValueError("ours"), ValueError),
    ],
)
def test_what_glue_refuses_is_denied_and_what_it_cannot_do_now_is_tried_again(error: Exception, kind: type) -> None:
    target = IcebergTarget.model_validate(
        {"name": "lake", "kind": "iceberg", "namespace": "ns", "tables": {"*": {}}, "catalog": {"type": "glue"}}
    )
    with pytest.raises(kind), catalog_answers(target):
        raise error


@pytest.mark.parametrize(
    ("uri", "warehouse"),
    [
        ("sqlite:///catalog.db", "file:///lake"),
        ("sqlite:///:memory:", "file:///lake"),
        ("sqlite:////lake/catalog.db", "warehouse"),
        ("postgresql://host/lake", "./warehouse"),
    ],
)
def test_a_lake_is_the_same_in_whatever_folder_a_command_runs(uri: str, warehouse: str) -> None:
    target = IcebergTarget.model_validate(
        {"name": "lake", "kind": "iceberg", "catalog": {"type": "sql", "uri": uri, "warehouse": warehouse},
         "namespace": "ns", "tables": {"*": {}}}
    )  # fmt: skip
    with raises(UsageError, "config.invalid"), open_catalog(target):
        pass


@pytest.mark.parametrize("transactions", [True, False], ids=["one request", "one by one"])
@pytest.mark.parametrize("status", ["401", "403"])
def test_a_commit_that_a_rest_catalog_does_not_allow_is_denied(status: str, transactions: bool, tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path, transactions=transactions) as server:
        target = IcebergTarget.model_validate(
            {"name": "lake", "kind": "iceberg", "catalog": {"type": "rest", "uri": server.uri}, "namespace": "ns",
             "tables": {"*": {}}}
        )  # fmt: skip
        with open_catalog(target) as catalog:
            catalog.create_namespace("ns")
            schema, update = Schema(NestedField(1, "id", LongType())), SetPropertiesUpdate(updates={"mark": "set"})
            tables = [catalog.create_table(f"ns.{name}", schema) for name in "ab"]
            server.faults.extend([status] * 2)  # PyIceberg logs in again, and repeats what 401 refused
            with pytest.raises(Refused) as refused, catalog_answers(target):
                commit(catalog, [TableCommit(table, (), (update,)) for table in tables])
            assert refused.value.code == "connection.denied"
            assert not any("mark" in catalog.load_table(f"ns.{name}").properties for name in "ab")
