"""What a task that reads or writes files of a lake says of its storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from cdc_core.config import StageConfig
from cdc_core.errors import DataAtRisk, RetryLater
from spark_jobs.lake_mirrors import in_lake
from tests.lab.refusals import raises


def of_a_bucket(*_: Any) -> Iterator[Any]:
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    bucket = fs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override="http://127.0.0.1:1", retry_strategy=retries
    )
    yield bucket.open_input_file("lake/part.parquet")


def of_a_folder(*_: Any) -> Iterator[Any]:
    yield Path("/not/there.parquet").read_bytes()


def on_a_full_disk(*_: Any) -> Iterator[Any]:
    yield Path("/dev/full").write_bytes(b"rows")


def test_a_storage_that_does_not_answer_is_tried_again_and_a_file_that_is_not_there_is_not(tmp_path: Path) -> None:
    stage, target = StageConfig(uri=(tmp_path / "stage").as_uri()), SimpleNamespace(name="lake")
    job: Any = SimpleNamespace(pipeline=SimpleNamespace(stage=stage), target=target)

    def work(does: Any) -> None:
        with in_lake(job, does)() as on_piece:
            list(on_piece(SimpleNamespace(rows=1)))

    with raises(RetryLater, "connection.unreachable", match="part.parquet"):
        work(of_a_bucket)
    with raises(DataAtRisk, "lake.files_lost", match="there.parquet"):
        work(of_a_folder)
    with pytest.raises(OSError, match="No space"):  # `carried` says which disk
        work(on_a_full_disk)
