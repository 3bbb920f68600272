"""Brings a meta database to the schema that this version of Lockstep works with.

Keeps its version in a table with a name of its own, so that the meta tables may share a database with Airflow's.
"""

from __future__ import annotations

import logging

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

VERSION_TABLE = "lockstep_version"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "cdc_core.meta:migrations")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The number of the latest migration in this package."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def known(revision: str) -> bool:
    """Whether this package has that migration."""
    return any(script.revision == revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def current(connection: Connection) -> str | None:
    """The migration that the database is at; None for one without Lockstep's tables."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def empty(connection: Connection) -> bool:
    return not inspect(connection).get_table_names()


def upgrade(connection: Connection) -> None:
    """Run the migrations that are missing, inside the caller's transaction. Safe to run again after a kill."""
    # Alembic logs each step at INFO where its logger is configured; Meta.open logs the result once.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    command.upgrade(_config(connection), "head")
