"""Changes of definitions over the shards of a target."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    op.create_table(
        "ddl_rollout",
        sa.Column("rollout_id", text(64), primary_key=True),
        sa.Column("pipeline", text(64), nullable=False),
        sa.Column("target", text(64), nullable=False),
        sa.Column("name", text(512), nullable=False),
        sa.Column("direction", text(16), nullable=False),
        sa.Column("script", long_text(), nullable=False),
        sa.Column("prints", long_text(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="a change of definitions over all shards of a target; prints: JSON, what each statement makes of them",
        if_not_exists=True,
    )
    op.create_table(
        "ddl_shard",
        sa.Column("rollout_id", text(64), primary_key=True),
        sa.Column("table_name", text(192), primary_key=True),
        sa.Column("shard", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("behind", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", long_text()),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="how many statements of a rollout a shard has behind it",
        if_not_exists=True,
    )
