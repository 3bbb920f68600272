"""Brings a meta database to the schema that this version of Lockstep works with.

Keeps its version in a table with a name of its own, so that the meta tables may share a database with Airflow's.
A database that is up to date, or has none of the tables yet, is opened without Alembic, whose import takes longer than
all else that opening does.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, column, insert, inspect, select, table

from cdc_core.meta import meta_schema

VERSION_TABLE = "lockstep_version"


def _revisions() -> list[str]:
    """The migrations of this package, the first one first: their files' names begin with their numbers."""
    return sorted(file.name[:4] for file in Path(__file__).parent.glob("migrations/versions/[0-9]*.py"))


def head() -> str:
    """The number of the latest migration in this package."""
    return _revisions()[-1]


def known(revision: str) -> bool:
    """Whether this package has that migration."""
    return revision in _revisions()


def current(connection: Connection) -> str | None:
    """The migration that the database is at; None for one without Lockstep's tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(column("version_num")).select_from(table(VERSION_TABLE))).scalar_one_or_none()


def create(connection: Connection) -> None:
    """Makes the tables as all migrations would (tests compare both), without Alembic. Safe to run again after a kill:
    MySQL commits each statement."""
    meta_schema.metadata.create_all(connection)
    version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
    version.create(connection, checkfirst=True)
    connection.execute(insert(version), {"version_num": head()})


def upgrade(connection: Connection) -> None:
    """Run the migrations that are missing, inside the caller's transaction. Safe to run again after a kill."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "cdc_core.meta:migrations")
    config.attributes["connection"] = connection
    # Alembic logs each step at INFO where its logger is configured; Meta.open logs the result once.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    command.upgrade(config, "head")
