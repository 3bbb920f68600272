"""The Spark tasks against a target that does harm at one step: one clear error, nothing given away or half done."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import LockstepError
from cdc_core.model.run_plan import RunPlan
from spark_jobs import spark_failures
from spark_jobs.filter import apply_filter
from spark_jobs.job import Job
from spark_jobs.quality import check
from spark_jobs.write import write
from tests.lab.hostile_server import ANSWERS, CLOSING, Meddler
from tests.spark.target_line import FIRST, TargetLine, order

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
GIVE_UP_S = 180
TASKS: dict[str, Callable[[Job], None]] = {"filter": apply_filter, "write": write, "quality": check}
CONTENT = "the content of a file of ours"


class Hostile:
    """A run whose task meets a target that meddles."""

    def __init__(self, line: TargetLine, server: Any, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line, self.server, self.secret, self.patch = line, server, secret, monkeypatch
        line.run(*FIRST)
        line.stage.begin_again()
        self.plan: RunPlan = line.run(order("u", 1, 1, "one", 30, code="c1"), order("d", 2, 2, "c2", 31))
        self.expected = line.everything()

    def attempt(self, task: str, step: int | None, harm: str = "") -> tuple[int, str]:
        """The number of commands, and what is wrong: "" for an end with an error of ours, or a good one."""
        job = self.line.job(self.plan)
        ended: list[BaseException | None] = []

        def work() -> None:
            try:
                TASKS[task](job)
                ended.append(None)
            except BaseException as error:  # noqa: BLE001 - looked at below
                ended.append(error)

        with Meddler(self.server.port, step, harm, self.secret) as meddler:
            login = f"{self.server.user}:{self.server.password}@127.0.0.1:{meddler.port}"
            self.patch.setenv("TARGET_URL", f"mysql://{login}/?connect_timeout=2&read_timeout=2&write_timeout=2")
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(GIVE_UP_S)
            steps, met, received = len(meddler.statements), meddler.met, bytes(meddler.received)
        self.patch.setenv("TARGET_URL", self.server.url)
        return steps, self._wrong(ended, received, f"{harm} at {step} of {task} {str(met)[:100]!r}: ")

    def _wrong(self, ended: list[BaseException | None], received: bytes, where: str) -> str:
        if not ended:
            return f"{where}hangs"
        error = ended[0]
        if error is not None:
            known = error if isinstance(error, LockstepError) else spark_failures.found(error)
            if known is None or known.code.startswith("internal."):
                return f"{where}{type(error).__name__} {str(error)[:300]}"
            if self.server.password in str(error):
                return f"{where}showed the password"
        if CONTENT.encode() in received:
            return f"{where}sent a file"
        return f"{where}sent the password" if self.server.password.encode() in received else ""

    def finish(self) -> None:
        """The tasks again, with an honest target: the run ends as if nothing had been."""
        for work in TASKS.values():
            work(self.line.job(self.plan))
        self.line.adds_up(self.plan)
        assert self.line.everything() == self.expected


@pytest.fixture
def hostile(line: TargetLine, mariadb_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    secret = tmp_path / "secret"
    secret.write_text(CONTENT)
    return Hostile(line, mariadb_target, secret, monkeypatch)


def test_a_target_may_do_harm_at_any_step_of_a_task(hostile: Hostile) -> None:
    harms = itertools.cycle(["silence", "nonsense", "file", "cut", "more columns", "no rows", "truncated"])
    wrong = []
    for task in TASKS:
        steps, bad = hostile.attempt(task, None)
        wrong.append(bad)
        for part in (
            (0.4, 0.85) if task == "write" else (0.85,)
        ):  # 0.4: the driver looks at the tables; then a worker works
            wrong.append(hostile.attempt(task, int(steps * part), next(harms))[1])
    assert list(filter(None, wrong)) == []
    hostile.finish()


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("harm", [*CLOSING, *ANSWERS, "silence", "drip"])
@pytest.mark.parametrize("task", TASKS)
def test_a_target_may_do_every_harm_in_every_task(hostile: Hostile, task: str, harm: str) -> None:
    steps, bad = hostile.attempt(task, None)
    assert bad == ""
    wrong = [hostile.attempt(task, step, harm)[1] for step in range(0, steps, max(1, steps // 12))]
    assert list(filter(None, wrong)) == []
    hostile.finish()
