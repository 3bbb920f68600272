"""The Spark application that the tasks of a run share: one at a time, for as long as there are tasks, and no longer.

Its driver is the real one; a shell takes the place of the JVM above it, and two lines of Python that of the jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdc_core.apply import run_application, run_slots
from cdc_core.apply.jobs import SparkJob
from cdc_core.apply.run_application import RunApplication, Unreachable, end
from cdc_core.errors import LockstepError, Refused, to_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes at a socket are verified on Linux")

ERROR = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")
DRIVER = """\
import os, sys, time, types
jobs = types.ModuleType("spark_jobs.run_jobs")
def print_to(output):
    with open(output, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
def run_job(job, arguments):
    with open(os.environ["JOBS"], "a") as file:
        print(os.getppid(), "begins", job, file=file, flush=True)
        print("output of", job, flush=True)
        status = eval(arguments[0])
        print(os.getppid(), "ends", job, file=file, flush=True)
    return status or 0
jobs.print_to, jobs.run_job, jobs.import_jobs = print_to, run_job, lambda: None
sys.modules["spark_jobs.run_jobs"] = jobs
from spark_jobs import serve_run
serve_run._import_jobs = lambda: None
serve_run.serve(*sys.argv[1:])
"""
JVM = 'echo started; sleep "$DELAY"; "$PYTHON" "$DRIVER" "$@"; exit $?'
TASK = "import sys; from tests.unit.apply.test_run_application import Run; Run.reopened(*sys.argv[1:3]).do(sys.argv[3])"


class Run:
    """A run's folder, and what its tasks do there."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.jobs, self.lines = scratch / "jobs", list[str]()
        driver = scratch / "driver.py"
        driver.write_text(DRIVER)
        self.environ = {
            **os.environ,
            "DELAY": "0",
            "PYTHON": sys.executable,
            "DRIVER": str(driver),
            "JOBS": str(self.jobs),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path]),
        }
        self.idle_s = 20.0

    @staticmethod
    def reopened(folder: str, scratch: str) -> Run:
        run = Run(Path(folder), Path(scratch))
        run.environ = dict(os.environ)
        return run

    def application(self, command: Sequence[str] = ("sh", "-c", JVM, "sh"), **environ: str) -> RunApplication:
        return RunApplication(
            self.folder,
            command=lambda job: command,
            environ=self.environ | environ,
            idle_s=self.idle_s,
            show=self.lines.append,
        )

    def do(self, work: str, name: str = "merge", *, last: bool = False, **environ: str) -> None:
        """A task's job. work: a Python expression that the driver evaluates for it, the exit status."""
        self.application(**environ).submit(_job(work, name), "lockstep-shop", last=last)

    def started(self) -> int:
        return self.lines.count("started")

    def task(self, work: str) -> subprocess.Popen[bytes]:
        """The same in a process of its own."""
        return subprocess.Popen([sys.executable, "-c", TASK, self.folder, self.scratch, work], env=self.environ)

    def seen(self) -> list[list[str]]:
        """What the jobs have written: the process of the JVM, `begins` or `ends`, the job."""
        return [line.split() for line in self.jobs.read_text().splitlines()] if self.jobs.exists() else []

    def wait(self, true: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 60
        while not true():
            assert time.monotonic() < deadline_s, self.lines
            time.sleep(0.02)

    def jvm(self) -> int:
        self.wait(self.seen)
        return int(self.seen()[-1][0])

    def driver(self) -> int:
        jvm = self.jvm()
        return int(Path(f"/proc/{jvm}/task/{jvm}/children").read_text().split()[0])


def _job(work: str, name: str = "merge") -> SparkJob:
    return SparkJob(name, f"{name}.py", (work,), {}, jars=(), packages=(), excluded=(), environment=())


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="lockstep-", dir=run_slots.SHORT) as base:
        folder = Path(base) / "run"
        folder.mkdir(mode=0o700)
        run = Run(folder, tmp_path)
        yield run
        if folder.exists():
            end(folder)
        for pid in {int(pid) for pid, what, _ in run.seen() if what == "begins"}:
            run.wait(lambda pid=pid: not _alive(pid))  # type: ignore[misc]


def test_the_tasks_of_a_run_share_an_application_and_each_sees_the_output_of_its_own_job(run: Run) -> None:
    run.do("0", AIRFLOW_CTX_TASK_ID="merge")
    assert (run.lines, len({line[0] for line in run.seen()})) == (["started", "output of merge"], 1)
    run.lines.clear()
    run.do("0", "filter", AIRFLOW_CTX_TASK_ID="filter", _AIRFLOW_PARSING_CONTEXT_TASK_ID="filter")
    assert run.lines == ["output of filter"]
    run.do("0", "quality", last=True)
    jvm = run.jvm()
    run.wait(lambda: not _alive(jvm))
    assert {line[0] for line in run.seen()} == {str(jvm)}
    run.wait(lambda: not run.folder.exists())


def test_an_application_that_no_task_asks_ends_and_leaves_nothing(run: Run) -> None:
    run.idle_s = 0.5
    run.do("0")
    jvm = run.jvm()
    run.wait(lambda: not _alive(jvm))
    assert not run.folder.exists()


def test_an_application_is_told_to_end_when_the_run_is_over_but_not_amid_a_job(run: Run) -> None:
    thread = threading.Thread(target=run.do, args=("time.sleep(1)",))
    thread.start()
    jvm = run.jvm()
    end(run.folder)
    thread.join()
    assert _alive(jvm)
    end(run.folder)
    run.wait(lambda: not _alive(jvm))


def test_the_error_of_a_job_comes_back_and_its_application_takes_no_other_job(run: Run) -> None:
    with pytest.raises(LockstepError) as caught:
        run.do(f"print({to_line(ERROR, last=True)!r}) or 3")
    assert (caught.value.code, caught.value.where) == ("target.key", ERROR.where)
    run.do("0", "filter")
    assert run.started() == 2


@pytest.mark.parametrize("killed", ["driver", "jvm"])
def test_a_driver_or_jvm_that_is_killed_amid_a_job_ends_it_and_the_retry_gets_another(run: Run, killed: str) -> None:
    raised: list[LockstepError] = []

    def task() -> None:
        try:
            run.do("time.sleep(60)")
        except LockstepError as error:
            raised.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    os.kill(run.jvm() if killed == "jvm" else run.driver(), signal.SIGKILL)
    thread.join()
    assert [error.code for error in raised] == ["run.spark_ended"]
    run.do("0")
    assert run.started() == 2


def test_a_task_that_is_killed_ends_its_job_before_the_retry_begins_it(run: Run) -> None:
    task = run.task("time.sleep(60)")
    jvm = run.jvm()
    task.kill()
    task.wait()
    run.do("0")
    assert not _alive(jvm)
    assert [line[1] for line in run.seen()] == ["begins", "begins", "ends"]
    assert len({line[0] for line in run.seen()}) == 2


def test_a_job_that_is_cancelled_ends_and_is_not_submitted_in_another_way(run: Run) -> None:
    application, raised = run.application(), list[BaseException]()

    def task() -> None:
        try:
            application.submit(_job("time.sleep(60)"), "lockstep-shop", last=False)
        except (LockstepError, Unreachable) as error:
            raised.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    jvm = run.jvm()
    application.cancel()
    thread.join()
    assert [getattr(error, "code", "") for error in raised] == ["run.spark_ended"]
    run.wait(lambda: not _alive(jvm))
    with pytest.raises(LockstepError):
        application.submit(_job("0"), "lockstep-shop", last=False)


def test_a_task_that_is_killed_while_it_starts_the_application_leaves_it_to_its_retry(run: Run) -> None:
    run.environ["DELAY"] = "2"
    task = run.task("0")
    run.wait(lambda: (run.folder / "0.alive").exists() and (run.folder / "0.alive").read_text())
    task.kill()
    task.wait()
    run.do("0")
    assert run.started() == 1, "it shows what the application printed before"
    assert len(run.seen()) == 2


def test_an_application_that_neither_answers_nor_ends_is_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.do("0")
    jvm, driver = run.jvm(), run.driver()
    monkeypatch.setattr(run_application, "_LEAVE_S", 1.0)
    os.kill(driver, signal.SIGSTOP)
    run.do("0", "filter")
    assert run.started() == 2
    run.wait(lambda: not _alive(jvm) and not _alive(driver))


def test_other_logins_get_another_application_and_the_first_one_ends(run: Run) -> None:
    run.do("0", LOCKSTEP_CONN_TARGET="first")
    jvm = run.jvm()
    run.do("0", "filter", LOCKSTEP_CONN_TARGET="second")
    assert run.started() == 2
    assert not _alive(jvm)
    run.do("0", "write", LOCKSTEP_CONN_TARGET="second")
    assert run.started() == 2


def test_settings_environment_and_code_are_each_part_of_what_an_application_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("cdc_core", "spark_jobs", "lockstep_expectations"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("1")
    monkeypatch.setattr(
        run_application.importlib.util,
        "find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path / name)]),
    )
    command, environ = ["spark-submit", "--conf", "spark.executor.memory=1g"], {"COPY": "mysql://a"}
    first = run_application.identity_of(command, environ)
    assert run_application.identity_of(list(command), dict(environ)) == first
    others = [
        run_application.identity_of(["spark-submit", "--conf", "spark.executor.memory=2g"], environ),
        run_application.identity_of(command, {"COPY": "mysql://b"}),
        run_application.identity_of(command, {**environ, "AWS_PROFILE": "other"}),
    ]
    (tmp_path / "cdc_core" / "__init__.py").write_text("22")
    others.append(run_application.identity_of(command, environ))
    assert len({first, *others}) == 5


def test_a_login_is_neither_in_arguments_nor_in_a_file_that_others_can_read(run: Run) -> None:
    run.do("0", LOCKSTEP_CONN_TARGET="s3cret")
    arguments = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (run.jvm(), run.driver())]
    identity = run_application.identity_of(("sh", "-c", JVM, "sh"), run.environ | {"LOCKSTEP_CONN_TARGET": "s3cret"})
    assert all(b"s3cret" not in one and identity.encode() not in one for one in arguments)
    files = list(run.folder.iterdir())
    assert {path.name for path in files} == {"0.use", "0.alive", "0.socket", "0.output"}
    assert {path.stat().st_mode & 0o077 for path in files if not path.is_socket()} == {0}
    assert run.folder.stat().st_mode & 0o077 == 0


@pytest.mark.matrix
def test_a_busy_application_is_waited_for_and_then_another_one_is_started(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = run.task("time.sleep(3)")
    run.jvm()
    run.do("0", "filter")
    task.wait()
    assert run.started() == 0, "it waited"
    monkeypatch.setattr(run_application, "_BUSY_S", 0.3)
    task = run.task("time.sleep(60)")
    run.wait(lambda: len(run.seen()) == 5)
    run.do("0", "filter")
    assert run.started() == 1
    task.kill()
    task.wait()


def test_an_application_that_ends_before_it_takes_the_job_leaves_it_to_the_caller(run: Run) -> None:
    for command in (("sh", "-c", "echo 'no Java'; exit 1"), ("/nowhere/spark-submit",)):
        with pytest.raises(Unreachable):
            run.application(command).submit(_job("0"), "lockstep-shop", last=False)
    assert run.lines == ["no Java"]
    assert run.seen() == []


def test_a_folder_that_others_can_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_slots, "SHORT", str(tmp_path))
    folder = run_slots.run_folder("a")
    assert run_slots.run_folder("a") == folder != run_slots.run_folder("b")
    folder.parent.chmod(0o750)
    with pytest.raises(run_slots.NotPrivate):
        run_slots.run_folder("a")
    folder.parent.chmod(0o700)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(run_slots.NotPrivate):
        run_slots.run_folder("a")


def test_what_killed_applications_of_other_runs_left_is_removed_and_what_is_in_use_is_not(run: Run) -> None:
    dead, live = run_slots.Slot(run.folder.parent / "dead", 0), run_slots.Slot(run.folder.parent / "live", 0)
    for slot in (dead, live):
        slot.folder.mkdir()
        slot.alive.write_text("1")
        slot.use.write_text("")
        slot.output.write_text("x")
    held = run_slots.locked(live.alive)
    assert held is not None
    run_slots.sweep(run.folder)
    assert not dead.folder.exists()
    assert live.output.exists()
    os.close(held)
