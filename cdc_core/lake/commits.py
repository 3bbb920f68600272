"""Commits that hold for tables as they were read: for none of them, if another writer has changed one since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, TableRequirement, TableUpdate
from requests import HTTPError
from sqlalchemy import update

from cdc_core.lake.catalogs import name_of


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What is asked of a table, beside that it is the same one, and done to it. table: as it was read."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @property
    def asked(self) -> tuple[TableRequirement, ...]:
        return AssertTableUUID(uuid=self.table.metadata.table_uuid), *self.requirements


def in_one_step(catalog: Catalog) -> str:
    """How the catalog changes several tables, or none of them, at once, in words; "" if it cannot."""
    if isinstance(catalog, SqlCatalog):
        return "in one SQL transaction"
    return "in one request" if _takes_transactions(catalog) else ""


def commit(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
    """In one transaction where the catalog can; otherwise one after the other, and a table may have been changed as far
    as the requirements allow. Raises CommitFailedException, and what else the catalog raises."""
    if isinstance(catalog, SqlCatalog):
        _in_one_transaction(catalog, commits)
    elif len(commits) > 1 and _takes_transactions(catalog):
        _in_one_request(catalog, commits)
    else:
        for table_commit in commits:
            done = catalog.commit_table(table_commit.table, table_commit.asked, table_commit.updates)
            _forget(catalog, table_commit.table, done.metadata)


def _in_one_transaction(catalog: SqlCatalog, commits: Sequence[TableCommit]) -> None:
    """A commit of a SQL catalog is one UPDATE of a row, of a table that is where it was."""
    staged = []
    for table_commit in commits:
        made = catalog._update_and_stage_table(
            table_commit.table, table_commit.table.name(), table_commit.asked, table_commit.updates
        )
        catalog._write_metadata(made.metadata, made.io, made.metadata_location)
        staged.append((table_commit.table, made))
    with catalog.engine.begin() as connection:
        for table, made in staged:
            *namespace, name = table.name()
            moved = connection.execute(
                update(IcebergTables)
                .where(
                    IcebergTables.catalog_name == catalog.name,
                    IcebergTables.table_namespace == ".".join(namespace),
                    IcebergTables.table_name == name,
                    IcebergTables.metadata_location == table.metadata_location,
                )
                .values(metadata_location=made.metadata_location, previous_metadata_location=table.metadata_location)
            )
            if moved.rowcount != 1:
                raise CommitFailedException(f"{name_of(table.name())} was changed by another writer")
    for table, made in staged:
        _forget(catalog, table, made.metadata)


def _takes_transactions(catalog: Catalog) -> bool:
    """Whether a REST catalog says that it changes several tables in one request (`transactions/commit` of Iceberg's
    REST specification). PyIceberg has no call for it."""
    from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog

    offered = Endpoint(http_method=HttpMethod.POST, path="/v1/{prefix}/transactions/commit")
    return isinstance(catalog, RestCatalog) and offered in catalog._supported_endpoints


def _in_one_request(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.rest.response import _handle_non_200_response

    assert isinstance(catalog, RestCatalog)
    changes: list[Any] = [
        {
            "identifier": {"namespace": table_commit.table.name()[:-1], "name": table_commit.table.name()[-1]},
            "requirements": [each.model_dump(mode="json", by_alias=True) for each in table_commit.asked],
            "updates": [
                each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in table_commit.updates
            ],
        }
        for table_commit in commits
    ]
    answer = catalog._session.post(catalog.url("transactions/commit"), json={"table-changes": changes})
    try:
        answer.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, {404: NoSuchTableError, 409: CommitFailedException})


def _forget(catalog: Catalog, before: Table, after: TableMetadata) -> None:
    """Removes the files of metadata that the table's log has no more, as `Table.commit` does."""
    catalog._delete_old_metadata(before.io, before.metadata, after)
