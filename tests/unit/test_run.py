"""A Spark application under `lockstep run`: its output is kept, its status decides, its error comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.apply.jobs import SparkJob
from cdc_core.config import parse
from cdc_core.errors import LockstepError, Refused
from cdc_core.run import Rooms, submit

ERROR = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")
PIPELINE = """\
pipeline: shop
sources: [{name: shop, connection: env:SHOP, server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: file:///tmp/none}
meta: {url: sqlite:////tmp/none.db}
"""


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
    with pytest.raises(LockstepError) as caught:
        submit(job("exit 3"), rooms(tmp_path, "/usr/bin:/bin"))
    assert caught.value.code == "run.spark_ended", "what an earlier application logged is not this one's"


def test_the_environment_of_this_python_comes_first_on_the_path(tmp_path: Path) -> None:
    submit(job("command -v spark-submit"), rooms(tmp_path, "/usr/bin:/bin"))
    assert (tmp_path / "job.log").read_text().strip().endswith("/bin/spark-submit")
