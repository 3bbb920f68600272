"""Definitions of a source's tables as of a place in its log, where the log itself does not name their columns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"

_EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


def upgrade() -> None:
    names = [
        sa.Column(
            name,
            sa.String(length).with_variant(mysql.VARCHAR(length, **_EXACT), "mysql", "mariadb"),
            primary_key=True,
        )
        for name, length in (("source", 64), ("source_table", 192))
    ]
    op.create_table(
        "table_definition",
        *names,
        sa.Column("since_seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("definition", sa.Text().with_variant(mysql.LONGTEXT(**_EXACT), "mysql", "mariadb"), nullable=False),
        comment="what a source table was from the order key since_seq on, where the log does not name its columns",
        if_not_exists=True,
    )
