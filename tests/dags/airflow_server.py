"""A whole Airflow for tests: web server, scheduler and DAG processor, and its REST interface as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from examples.sandbox.process import free_port
from examples.shop.airflow_env import airflow_environment, run_airflow
from examples.shop.standalone import login, standalone, wait_until_healthy

POLL_S = 2.0
"""Each answer costs the web server a tenth of a second of CPU time, which the tasks that are waited for need."""
FEW_LOOKS = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300"}
"""For an Airflow whose pipelines are there before it looks for the first time: each look costs seconds of CPU time."""
STOP_S = 2.0
"""How long an Airflow may take to end before it is killed; nothing is asked of it afterwards."""
SEEN_S = 15.0
"""In which the scheduler hears what a task has come to: measured, 6 s where it has nothing else to do."""
PATIENCE_S = 600
"""In which something must happen, on a machine that is busy with other things."""
LOOK_S = 0.1


@contextmanager
def serving(
    folder: Path, connections: Mapping[str, str], *, database: str | None = None, **environ: str
) -> Iterator[AirflowServer]:
    """An Airflow whose pipelines are in `folder`/pipelines. connections: by id. database: as of airflow_environment."""
    home, log, port = folder / "airflow", folder / "airflow.log", free_port()
    known = airflow_environment(home, folder / "pipelines", connections, port=port, database=database)
    environment = {**os.environ, **known, **environ}
    with standalone(environment, log, stop_s=STOP_S) as process:
        assert wait_until_healthy(process, port), log.read_text()[-6000:]
        yield AirflowServer(process, port, home, log, environment)


@dataclass
class AirflowServer:
    """A running `airflow standalone`. environment: the one that it and its command line run in."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path
    log: Path
    environment: Mapping[str, str]
    _token: str = field(default="", repr=False)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, logged_in: bool = True) -> Any:
        """One call of the REST interface; the answer, decoded. Fails on a status that is not 2xx."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if logged_in and not path.startswith("/auth/"):
            request.add_header("Authorization", f"Bearer {self._logged_in()}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        return json.loads(text) if text else None

    def _logged_in(self) -> str:
        if not self._token:
            user, password = login(self.home)
            self._token = self.call("POST", "/auth/token", {"username": user, "password": password})["access_token"]
        return self._token

    def command(self, *arguments: str) -> str:
        """`airflow ARGUMENTS`; what it printed."""
        lines: list[str] = []
        code = run_airflow(arguments, self.environment, log=self.log, on_line=lines.append)
        assert code == 0, "\n".join(lines[-40:])
        return "\n".join(lines)

    def wait_for_dag(self, dag_id: str) -> None:
        """Until the DAG processor has found it."""
        self._until(lambda: any(dag["dag_id"] == dag_id for dag in self.call("GET", "/api/v2/dags")["dags"]), dag_id)

    def set_connection(self, connection_id: str, **values: Any) -> None:
        """Adds or replaces a connection."""
        known = {connection["connection_id"] for connection in self.call("GET", "/api/v2/connections")["connections"]}
        method, path = ("PATCH", f"/{connection_id}") if connection_id in known else ("POST", "")
        body = {"connection_id": connection_id, "conn_type": "mysql", **values}
        self.call(method, f"/api/v2/connections{path}", body)

    def switch_on(self, dag_id: str) -> None:
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, **conf: Any) -> Run:
        """A run by hand, without logical date, as the page's button makes it."""
        made = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return Run(self, dag_id, made["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The DAG's runs, by the end of their interval."""
        found = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after")["dag_runs"]
        assert isinstance(found, list)
        return found

    def wait_for_runs(self, dag_id: str, count: int) -> list[Run]:
        """Until the DAG has so many runs and all have ended; the runs. Fails with the reason when one of them fails."""

        def states() -> list[str]:
            found = [(Run(self, dag_id, run["dag_run_id"]), run["state"]) for run in self.runs(dag_id)]
            for run, state in found:
                assert state != "failed", run.why_failed()
            return [state for _, state in found]

        self._until(lambda: states() == ["success"] * count, f"{count} runs of {dag_id}", news=states)
        return [Run(self, dag_id, run["dag_run_id"]) for run in self.runs(dag_id)]

    def _until(
        self, true: Callable[[], bool], what: str, *, news: Callable[[], object] = lambda: None, look_s: float = POLL_S
    ) -> None:
        """news: what changes as long as it goes on; as often as it does, the patience begins again."""
        seen, deadline_s = news(), time.monotonic() + PATIENCE_S
        asked_s = time.monotonic()
        try:
            while not true():
                time.sleep(look_s)
                if time.monotonic() < asked_s + POLL_S:
                    continue
                asked_s = time.monotonic()
                if (now := news()) != seen:
                    seen, deadline_s = now, asked_s + PATIENCE_S
                assert asked_s < deadline_s, f"nothing has happened for {PATIENCE_S} s: {seen}"
        except BaseException:  # also the test's own timeout, which says only that there was one
            print(f"waited in vain for {what}; the end of Airflow's log:\n{self.log.read_text()[-12000:]}")
            raise


@dataclass
class Run:
    """A run of a DAG."""

    server: AirflowServer
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}"

    def tasks(self) -> list[dict[str, Any]]:
        found = self.server.call("GET", f"{self.path}/taskInstances")["task_instances"]
        assert isinstance(found, list)
        return found

    def states(self) -> dict[str, str]:
        """State of each task by its id."""
        return {task["task_id"]: task["state"] for task in self.tasks()}

    def tries(self, task_id: str) -> int:
        return next(int(task["try_number"]) for task in self.tasks() if task["task_id"] == task_id)

    @property
    def state(self) -> str:
        return str(self.server.call("GET", self.path)["state"])

    def wait(self) -> None:
        """Until it has succeeded. Fails with the reason when it fails. Right after a clear it is queued, so that this
        waits for the new end."""
        self.server._until(lambda: self._goes_on() == "success", self.run_id, news=self._tries)

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Until something is true that happens while the run is under way. Fails with the reason when it fails, or ends
        before."""

        def news() -> object:
            # It may have ended just after what is waited for.
            assert self._goes_on() != "success" or true(), f"the run ended before {what}: {self.states()}"
            return self._tries()

        self.server._until(true, what, news=news, look_s=LOOK_S)

    def _goes_on(self) -> str:
        state = self.state
        assert state != "failed", self.why_failed()
        return state

    def _tries(self) -> list[tuple[str, str, int]]:
        return [(task["task_id"], task["state"], task["try_number"]) for task in self.tasks()]

    def why_failed(self) -> str:
        """The states of its tasks, and the end of the log of each that failed."""
        failed = [task["task_id"] for task in self.tasks() if task["state"] == "failed"]
        return f"{self.run_id}: {self._tries()}" + "".join(f"\n{task}: {self.log_of(task)[-4000:]}" for task in failed)

    def answer(self, task_id: str, option: str) -> str:
        """Waits until a task asks somebody, and answers; what it had asked."""
        path = f"{self.path}/taskInstances/{task_id}/-1/hitlDetails"
        self.wait_until(lambda: self._asks(task_id), f"{task_id} to ask")
        asked = self.server.call("GET", path)
        # An answer before the scheduler knows that the task waits makes Airflow try the task again.
        time.sleep(SEEN_S)
        self.server.call("PATCH", path, {"chosen_options": [option]})
        return f"{asked['subject']} {asked['body']}"

    def _asks(self, task_id: str) -> bool:
        return self.states()[task_id] == "awaiting_input"

    def clear(self, *task_ids: str, downstream: bool = False) -> None:
        """The whole run, or only the tasks named and, if asked, all after them."""
        if not task_ids:
            self.server.call("POST", f"{self.path}/clear", {"dry_run": False})
            return
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.server.call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", body)

    def log_of(self, task_id: str) -> str:
        """The log of the task's last try."""
        task = next(task for task in self.tasks() if task["task_id"] == task_id)
        path = f"{self.path}/taskInstances/{task_id}/logs/{task['try_number']}?map_index={task['map_index']}"
        return json.dumps(self.server.call("GET", path)["content"])

    def xcom(self, task_id: str) -> Any:
        task = next(task for task in self.tasks() if task["task_id"] == task_id)
        path = f"{self.path}/taskInstances/{task_id}/xcomEntries/return_value?map_index={task['map_index']}"
        return self.server.call("GET", f"{path}&deserialize=true")["value"]
