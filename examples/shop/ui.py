"""`make ui`: Airflow's web page with the demo's pipeline, on this machine, until Ctrl-C.

Starts the demo's two servers again on the data that `make demo` left, a PostgreSQL for Airflow's metadata, on which
Airflow can backfill at once, and `airflow standalone`; nothing outlives it.
Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from rich.console import Console

from examples.shop.airflow_env import airflow_environment
from examples.shop.place import PIPELINE, Place, connections
from examples.shop.standalone import login, standalone, wait_until_healthy

USUAL_PORT = 8080

# Lines keep this width where the output goes to a file.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    """Serve until interrupted. Exit status 2 without a demo to show, 1 when Airflow does not come up."""
    place = Place()
    if not place.pipeline_file.exists():
        console.print("There is no pipeline to show yet: run `make demo` first, it leaves one in .lockstep/demo.")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    port = _port()
    log = place.root / "airflow-ui.log"
    try:
        with place.servers() as (source, target), place.airflow_database() as database:
            console.print(
                f"[green]✓[/] servers on 127.0.0.1: source port {source.port}, shards port {target.port}, Airflow's "
                f"database port {database.port}"
            )
            airflow_variables = airflow_environment(
                place.airflow_home, place.pipelines, {}, port=port, database=database.url()
            )
            environment = {**os.environ, **airflow_variables}
            with standalone(environment | connections(place, source, target), log) as airflow:
                with console.status("starting Airflow (about half a minute)"):
                    healthy = wait_until_healthy(airflow, port)
                if not healthy:
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
    console.print(f"http://127.0.0.1:{port}/plugin/lockstep    what is staged and applied")
    console.print(f"Switch cdc_{PIPELINE} on to run it each minute, or trigger it by hand; a form asks for the window.")
    console.print(f"A past range: Trigger, then Backfill. Log: {log}")
    console.print("Ctrl-C ends all of it.")


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


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
