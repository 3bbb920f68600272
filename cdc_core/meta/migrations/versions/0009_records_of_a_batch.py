"""Consume records by their batch: whoever asks for the records of a batch, whatever the target, read all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement, so a migration may be killed between two."""
    if "consume_record_of_batch" not in {
        one["name"] for one in sa.inspect(op.get_bind()).get_indexes("consume_record")
    }:
        op.create_index("consume_record_of_batch", "consume_record", ["batch_id", "state"])
