"""A Spark application under `lockstep run`: its output is kept, its status decides, its error comes back. A run whose
batches others take over starts none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.apply.jobs import SparkJob
from cdc_core.config import parse
from cdc_core.errors import LockstepError, Refused, to_line
from cdc_core.run import RunContext, carry_out, submit
from tests.made_batches import manifest
from tests.unit.apply.made_line import Line

ERROR = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")
PIPELINE = """\
pipeline: shop
sources: [{name: shop, connection: env:SHOP, server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: file:///tmp/none}
meta: {url: sqlite:////tmp/none.db}
"""


def run_context(tmp_path: Path, path: str) -> RunContext:
    # meta and store are not touched by submit
    return RunContext(parse(PIPELINE, where="x"), tmp_path, None, None, tmp_path, {"PATH": path}, print)  # type: ignore[arg-type]


class Command(SparkJob):
    """A job whose command is a shell's."""

    def command(self, master: str, *, spark_submit: str = "spark-submit") -> list[str]:
        return ["sh", "-c", self.application]


def job(script: str) -> SparkJob:
    return Command("job", script, (), {}, jars=(), packages=(), excluded=(), environment=())


def test_the_output_of_an_application_is_kept_and_its_status_decides(tmp_path: Path) -> None:
    submit(job("echo one; echo two >&2"), run_context(tmp_path, "/usr/bin:/bin"))
    assert (tmp_path / "job.log").read_text().split() == ["one", "two"]
    with pytest.raises(LockstepError) as caught:
        submit(job(f"printf '%s\\n' '{to_line(ERROR, last=True)}'; exit 3"), run_context(tmp_path, "/usr/bin:/bin"))
    assert caught.value.code == "target.key"
    with pytest.raises(LockstepError) as caught:
        submit(job("exit 3"), run_context(tmp_path, "/usr/bin:/bin"))
    assert caught.value.code == "run.spark_ended", "what an earlier application logged is not this one's"


def test_the_environment_of_this_python_comes_first_on_the_path(tmp_path: Path) -> None:
    submit(job("command -v spark-submit"), run_context(tmp_path, "/usr/bin:/bin"))
    assert (tmp_path / "job.log").read_text().strip().endswith("/bin/spark-submit")


def test_a_run_whose_batches_another_took_over_starts_nothing_and_says_who_has_them(tmp_path: Path) -> None:
    line = Line.open(tmp_path)
    with line.meta:
        line.stage(manifest(0))
        lost = line.plan("first")
        heir = line.plan("second")
        environ = {"SHOP": "mysql://u@127.0.0.1:1", "T": "mysql://u@127.0.0.1:2"}
        began: list[str] = []
        done = carry_out(
            RunContext(line.pipeline, tmp_path, line.meta, line.store, tmp_path, environ, began.append), lost
        )
        assert (began, done.summaries, done.ledgers, list(tmp_path.glob("*.log"))) == ([], (), (), [])
        assert len(done.lost) == 1
        assert "second took over" in done.lost[0]
        line.apply(heir)
        assert line.commit(heir).moved == 1
