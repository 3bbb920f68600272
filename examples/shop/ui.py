"""`make ui`: Airflow's web page with the demo's pipeline, on this machine, until Ctrl-C.

Starts the demo's two servers again on the data that `make demo` left, and `airflow standalone` in a process group of
its own, so that nothing outlives it. Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from examples.shop.airflow_env import REPOSITORY, airflow_command, airflow_environment
from examples.shop.place import PIPELINE, Place, connections

USUAL_PORT = 8080
START_S = 180
STOP_S = 20

console = Console(highlight=False)


def main() -> int:
    """Serve until interrupted. Exit status 2 without a demo to show, 1 when Airflow does not come up."""
    place = Place()
    if not place.pipeline_file.exists():
        console.print("There is no pipeline to show yet: run `make demo` first, it leaves one in .lockstep/demo.")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    port = _port()
    log = place.root / "airflow-ui.log"
    environment = {**os.environ, **airflow_environment(place.airflow_home, place.pipelines, {}, port=port)}
    try:
        with place.servers() as (source, target):
            console.print(f"[green]✓[/] servers on 127.0.0.1: source port {source.port}, shards port {target.port}")
            with _standalone(environment | connections(source, target), log) as airflow:
                if not _wait_until_healthy(airflow, port):
                    console.print(f"[red]Airflow did not come up. Its last lines (all of them: {log}):[/]")
                    console.print(
                        "".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]), markup=False
                    )
                    return 1
                _say_how(place.airflow_home, port, log)
                airflow.wait()
                console.print(f"[red]Airflow ended by itself; see {log}[/]")
                return 1
    except KeyboardInterrupt:
        console.print("\nstopped")
        return 0


def _say_how(home: Path, port: int, log: Path) -> None:
    user, password = login(home)
    console.rule("[bold]Airflow")
    console.print(f"http://127.0.0.1:{port}/dags/cdc_{PIPELINE}    user {user}, password {password}")
    console.print(f"Switch cdc_{PIPELINE} on to run it each minute, or trigger it by hand; a form asks for the window.")
    console.print(f"A past range: [bold]airflow backfill create[/] or the page's own Backfill. Log: {log}")
    console.print("Ctrl-C ends all of it.")


def login(home: Path) -> tuple[str, str]:
    """User and password that Airflow made up at its first start."""
    passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
    user = next(iter(passwords))
    return user, passwords[user]


def _port() -> int:
    """8080, or a free one."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


@contextmanager
def _standalone(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`airflow standalone`, ended with all of its children: by itself it leaves them behind."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            airflow_command(["standalone"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=REPOSITORY,
        )
    try:
        yield process
    finally:
        for signal_number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            try:
                os.killpg(process.pid, signal_number)
            except ProcessLookupError:
                break
            _reap_group(process, patience_s)


def _reap_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)


def _wait_until_healthy(airflow: subprocess.Popen[bytes], port: int) -> bool:
    deadline_s = time.monotonic() + START_S
    with console.status("starting Airflow (about half a minute)"):
        while time.monotonic() < deadline_s and airflow.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5) as answer:
                    health = json.load(answer)
                if all(health.get(part, {}).get("status") == "healthy" for part in ("metadatabase", "scheduler")):
                    return True
            except (urllib.error.URLError, OSError, ValueError):
                pass
            time.sleep(0.5)
    return False


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
