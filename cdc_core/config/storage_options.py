"""The keys `stage`, `meta`, `limits` and `retention`: where data is kept, how much at once, and for how long."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote

from pydantic import Field, model_validator

from cdc_core.config.value_types import MIB, Age, Cron, DatabaseUrl, Endpoint, Location, Model
from cdc_core.model.windows import age_us


class StageConfig(Model):
    """Where changes, manifests and runs are stored. S3 credentials come from the environment (AWS_*)."""

    uri: Location = Field(description="file:///directory or s3://bucket/prefix")
    s3_endpoint: Endpoint | None = Field(None, description="URL of an S3 server other than Amazon's")
    s3_region: str = Field("us-east-1", description="region of the bucket")
    compression_level: int = Field(1, ge=1, le=22, description="zstd level of the Parquet files")

    @model_validator(mode="after")
    def _scheme(self) -> StageConfig:
        if not re.match(r"^(file:///|s3://[^/]+)", self.uri):
            raise ValueError(f"uri {self.uri!r}: must begin with file:/// or s3://bucket")
        if found := re.search(r"[*?\[\]{}\\]", unquote(self.uri)):
            raise ValueError(
                f"uri {self.uri!r}: Spark and DuckDB take a path with {found[0]!r} for a pattern, and would read the "
                "files of other folders that match it"
            )
        return self


class MetaConfig(Model):
    """The database for leases, positions, consume records and ledgers: SQLite, PostgreSQL or MySQL."""

    url: DatabaseUrl = Field(description="SQLAlchemy URL without a password, or env:VARIABLE that holds one")


class Limits(Model):
    """Limits on memory and batches. The first limit reached closes the batch, at the end of a transaction."""

    ring_items: int = Field(1 << 20, description="changes and transaction ends in the ring, at most; a power of two")
    ring_mib: int = Field(
        256, ge=1, description="memory for changes between connection and files; the ring takes half of it"
    )
    batch_rows: int = Field(
        1_000_000,
        ge=1,
        description="changes at which a batch ends, at the end of the current block of transactions",
    )
    batch_mib: int = Field(128, ge=1, description="size of its files at which a batch ends")
    batch_age_s: float = Field(60.0, gt=0, description="age at which a batch ends")
    lease_s: float = Field(
        60.0, ge=5, description="an extractor that does not renew its lease for this long loses the source"
    )

    @property
    def ring_bytes(self) -> int:
        """Limit of the ring. As much again is for data before and after it, or held twice on its way."""
        return self.ring_mib * MIB // 2

    @property
    def block_bytes(self) -> int:
        """Limit of a block: one is being filled, one decoded."""
        return min(16 * MIB, self.ring_mib * MIB // 16)

    @property
    def row_group_buffer_bytes(self) -> int:
        """Limit of rows that wait for their row groups after the ring has released them."""
        return self.ring_mib * MIB // 4

    @model_validator(mode="after")
    def _power_of_two(self) -> Limits:
        if self.ring_items < 2 or self.ring_items & (self.ring_items - 1):
            raise ValueError(f"ring_items {self.ring_items}: must be a power of two")
        return self


class Retention(Model):
    """What the DAG cdc_<pipeline>_retention purges: batches that every target has committed, and files of old runs."""

    keep: Age = Field(
        description="minimum age of what is purged, such as 30d, 12h or 4w, from the end of a batch's window"
    )
    keep_meta: Age | None = Field(
        None,
        description="age, `keep` or more, at which purged batches and committed runs leave the meta database; "
        "default: never",
    )
    compact: Literal["day", "window"] | None = Field(
        None,
        description="joins the batches of a day (UTC) or a window into one file per table; default: never",
    )
    remove_originals: bool = Field(
        False,
        description="removes files that compacted ones replaced at least a day ago; default: they stay until purged",
    )
    schedule: Cron = Field("30 3 * * *", description="cron expression (UTC)")

    @model_validator(mode="after")
    def _compacted_first(self) -> Retention:
        if self.remove_originals and self.compact is None:
            raise ValueError("remove_originals: nothing is compacted; set compact to day or window")
        return self

    @model_validator(mode="after")
    def _purged_first(self) -> Retention:
        if self.keep_meta is not None and age_us(self.keep_meta) < age_us(self.keep):
            raise ValueError(f"keep_meta {self.keep_meta!r}: less than keep, {self.keep!r}")
        return self

    def forget_us(self, now_us: int) -> int | None:
        """Before when rows leave meta, at a moment; µs UTC."""
        return None if self.keep_meta is None else now_us - age_us(self.keep_meta)
