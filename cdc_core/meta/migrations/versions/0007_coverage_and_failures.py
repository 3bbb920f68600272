"""Whether tables are staged completely, errors that no success has followed, how long a source keeps its log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

revision = "0007"
down_revision = "0006"

_EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


def _text(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, **_EXACT), "mysql", "mariadb")


def _long() -> TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), "mysql", "mariadb")


def upgrade() -> None:
    """MySQL commits each statement: a migration killed between two of them finds what exists."""
    for table, name in (("ack_position", "surveyed_seq"), ("lease", "retention_s")):
        if name not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}:
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "table_coverage",
        sa.Column("source", _text(64), primary_key=True),
        sa.Column("source_table", _text(192), primary_key=True),
        sa.Column("coverage", _long(), nullable=False),
        sa.Column("staged", sa.Boolean(), nullable=False),
        comment="whether the staged history of a source table has every row; staged: a manifest says so",
        if_not_exists=True,
    )
    op.create_table(
        "failure",
        sa.Column("pipeline", _text(64), primary_key=True),
        sa.Column("task", _text(16), primary_key=True),
        sa.Column("subject", _text(250), primary_key=True),
        sa.Column("code", _text(64), nullable=False),
        sa.Column("exit_class", _text(16), nullable=False),
        sa.Column("what", _long(), nullable=False),
        sa.Column("place", _long(), nullable=False),
        sa.Column("remedy", _long(), nullable=False),
        sa.Column("first_us", sa.BigInteger(), nullable=False),
        sa.Column("failed_us", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        comment="the latest error of a task that has not succeeded since; subject: a source, a run",
        if_not_exists=True,
    )
