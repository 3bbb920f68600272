"""Opens the store that a stage's URI names: a directory or a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_core.process.extras import require
from cdc_core.stage.files import FileStore
from cdc_core.stage.objects import ObjectStore

if TYPE_CHECKING:
    from cdc_core.config import StageConfig


def open_store(uri: str, *, s3_endpoint: str | None = None, s3_region: str = "us-east-1") -> ObjectStore:
    """The store of a stage URI (`file:///directory`, `s3://bucket/prefix`); nothing is touched yet.

    Credentials of a bucket come from the environment, as boto3 finds them. Raises UsageError (install.missing).
    """
    if uri.startswith("s3://"):
        require("s3", by=f"the stage {uri}")
        from cdc_core.stage.s3 import S3Store  # boto3 takes a third of a second to import

        return S3Store(uri, endpoint=s3_endpoint, region=s3_region)
    return FileStore(uri)


def open_stage(stage: StageConfig) -> ObjectStore:
    """The store of a pipeline's stage."""
    return open_store(stage.uri, s3_endpoint=stage.s3_endpoint, s3_region=stage.s3_region)
