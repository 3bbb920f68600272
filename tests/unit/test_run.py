"""The error behind a failed Spark application is the one that it logged; anything else may be tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.apply.jobs import SparkJob
from cdc_core.config import parse
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater
from cdc_core.run import Rooms, of_spark, submit

ERROR = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")
PIPELINE = """\
pipeline: shop
sources: [{name: shop, connection: env:SHOP, server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: file:///tmp/none}
meta: {url: sqlite:////tmp/none.db}
"""


def logged(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_error_of_a_job_comes_back_as_it_was_raised(tmp_path: Path) -> None:
    output = logged(tmp_path, "INFO begun", f"2026-11-21 04:00:00,000 ERROR spark_jobs.job write: {ERROR}", "closing")
    error = of_spark(ERROR.exit_code, "lockstep-shop-write", output)
    assert type(error) is Refused
    assert (error.what, error.where, error.remedy, error.code) == (ERROR.what, ERROR.where, ERROR.remedy, ERROR.code)


def test_the_last_error_counts_and_what_earlier_jobs_logged_does_not(tmp_path: Path) -> None:
    output = logged(tmp_path, f"t ERROR a write: {ERROR}", "t ERROR b write: Other. What to do: x (data.other)")
    assert of_spark(DataAtRisk.exit_code, "job", output).code == "data.other"
    assert of_spark(DataAtRisk.exit_code, "job", output, output.stat().st_size).code == "run.spark_ended"


@pytest.mark.parametrize("status", [1, 137, -9])
def test_an_application_that_was_killed_may_be_tried_again(tmp_path: Path, status: int) -> None:
    error = of_spark(status, "job", logged(tmp_path, f"t ERROR a write: {ERROR}"))
    assert isinstance(error, RetryLater)
    assert error.code == "run.spark_ended"


def rooms(tmp_path: Path, path: str) -> Rooms:
    # meta and store are not touched by submit
    return Rooms(parse(PIPELINE, where="x"), tmp_path, None, None, tmp_path, {"PATH": path}, print)  # type: ignore[arg-type]


class Command(SparkJob):
    """A job whose command is a shell's."""

    def command(self, master: str, *, spark_submit: str = "spark-submit") -> list[str]:
        return ["sh", "-c", self.application]


def job(script: str) -> SparkJob:
    return Command("job", script, (), {}, jars=(), packages=(), excluded=(), environment=())


def test_the_output_of_an_application_is_kept_and_its_status_decides(tmp_path: Path) -> None:
    submit(job("echo one; echo two >&2"), rooms(tmp_path, "/usr/bin:/bin"))
    assert (tmp_path / "job.log").read_text().split() == ["one", "two"]
    with pytest.raises(LockstepError) as caught:
        submit(job(f"echo 't ERROR a write: {ERROR}'; exit 3"), rooms(tmp_path, "/usr/bin:/bin"))
    assert caught.value.code == "target.key"


def test_the_environment_of_this_python_comes_first_on_the_path(tmp_path: Path) -> None:
    submit(job("command -v spark-submit"), rooms(tmp_path, "/usr/bin:/bin"))
    assert (tmp_path / "job.log").read_text().strip().endswith("/bin/spark-submit")
