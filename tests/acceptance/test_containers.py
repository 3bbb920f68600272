"""The images and the compose set of docker/: built here, run by podman, with servers that stand for what is pulled."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.process import free_port
from tests.containers.podman import ROOT, Compose, build_ours, podman, stand_in, unavailable

# Building the images takes minutes, which no other test waits for.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(3600)]
RUN_S = 900.0


@pytest.fixture(scope="module")
def containers() -> None:
    if reason := unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def extractor(containers: None) -> str:
    return build_ours("extractor")


@pytest.fixture(scope="module")
def airflow(containers: None) -> str:
    return build_ours("airflow")


def in_container(image: str, *arguments: str, folder: Path | None = None, **environ: str) -> str:
    """What `lockstep ARGUMENTS` of an image prints; the test's servers are on this machine's 127.0.0.1."""
    options = [part for name in environ for part in ("-e", name)]  # by name: the value is in no command line
    options += ["-v", f"{folder}:/pipelines"] if folder else []
    return podman("run", "--rm", "--network", "host", *options, image, *arguments, **environ).stdout


def test_the_small_image_reads_stages_and_shows_as_a_user_without_rights_and_compiles_nothing(
    extractor: str, source_database: Any, tmp_path: Path
) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 10), (2, 20)"
    )
    folder = tmp_path / "pipelines"
    folder.mkdir()
    os.chown(folder, 50000, 0)

    def run(*arguments: str) -> Any:
        text = in_container(extractor, *arguments, "--json", folder=folder, SHOP=source_database.server.url)
        return json.loads(text)

    assert re.match(r"lockstep \d", in_container(extractor, "--version"))
    run("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*")
    run("check", "shop.yaml")
    run("extract", "shop.yaml")
    run("snapshot", "shop.yaml")
    source_database.execute("UPDATE orders SET v = 11 WHERE id = 1", "INSERT INTO orders VALUES (3, 30)")
    said = podman(
        "run", "--rm", "--network", "host", "-e", "SHOP", "-v", f"{folder}:/pipelines", extractor,
        "extract", "shop.yaml", "--until", "now", SHOP=source_database.server.url,
    )  # fmt: skip
    assert "Compiling" not in said.stderr + said.stdout
    found = run("stage", "sql", "shop.yaml", f'SELECT id, v FROM "{name}.orders" ORDER BY id')
    assert found["rows"] == [[1, 11], [2, 20], [3, 30]]
    assert {path.stat().st_uid for path in folder.rglob("*")} == {50000}


@pytest.mark.parametrize("image", ["extractor", "airflow"])
def test_images_are_without_root_and_without_secrets(image: str, request: pytest.FixtureRequest) -> None:
    name = request.getfixturevalue(image)
    about = json.loads(podman("image", "inspect", name).stdout)[0]
    assert about["Config"]["User"] == "50000:0"
    known = {"PATH", "container", "PIP_CERT", "SSL_CERT_FILE"}  # the last two are of the base that this machine makes
    mine = {text.partition("=")[0] for text in about["Config"]["Env"]} - known
    assert all(re.fullmatch(r"(NUMBA|LOCKSTEP|AIRFLOW)_\w+", variable) for variable in mine), mine
    look = (
        "id -u; find / -xdev '(' -name .env -o -name '*.key' ')' -not -path '/proc/*' 2>/dev/null;"
        "grep -rIlE '^-----BEGIN ([A-Z]+ )?PRIVATE KEY' /opt /home /etc /pipelines 2>/dev/null; true"
    )
    assert podman("run", "--rm", "--entrypoint", "sh", name, "-c", look).stdout.split() == ["50000"]


@pytest.fixture(scope="module")
def compose(airflow: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """The set, up and healthy, on a port of its own."""
    file = ROOT / "docker/compose.yaml"
    port = free_port()
    # docker/.env of a developer is left alone: variables of the shell come first.
    secrets = made_secrets(tmp_path_factory.mktemp("env"))
    made = Compose(f"lockstep{port}", file, secrets | {"AIRFLOW_PORT": str(port)})
    for service in made.services.values():
        if not str(service["image"]).startswith("localhost/"):
            stand_in(str(service["image"]))
    try:
        made.up()
        yield made
    finally:
        made.down()


def made_secrets(folder: Path) -> dict[str, str]:
    """What docker/make-env writes, in a folder of its own."""
    script = folder / "make-env"
    script.write_bytes((ROOT / "docker/make-env").read_bytes())
    subprocess.run(["sh", script], check=True, capture_output=True)
    file = folder / ".env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_text()
    subprocess.run(["sh", script], check=True, capture_output=True)
    assert file.read_text() == before, "passwords that servers know are kept"
    return dict(line.split("=", 1) for line in before.splitlines())


def test_the_compose_set_has_a_green_dag_and_an_equal_target(compose: Compose) -> None:
    api = Api(int(compose.environ["AIRFLOW_PORT"]), compose.environ["AIRFLOW_ADMIN_PASSWORD"])
    compose.exec(
        "scheduler", "lockstep", "check", "/pipelines/shop.yaml", "--spark-master", "spark://spark-master:7077"
    )
    wait_for(lambda: "cdc_shop" in [dag["dag_id"] for dag in api("dags")["dags"]], compose)
    assert api("importErrors")["total_entries"] == 0
    # The first run starts the copy; a later one applies it.
    assert api.run("cdc_shop", compose) == "success"
    wait_for(
        lambda: [run["state"] for run in api("dags/cdc_shop_snapshot/dagRuns")["dag_runs"]] == ["success"], compose
    )
    for statement in (
        "INSERT INTO shop.orders (customer_id, total) VALUES (7, 12.50)",
        "UPDATE shop.customers SET country = 'it' WHERE id % 10 = 0",
        "DELETE FROM shop.orders WHERE order_id % 100 = 0",
    ):
        mysql(compose, "source", statement)
    assert api.run("cdc_shop", compose) == "success"
    for table, columns, rows in (
        ("customers", "id, name, country, created_at", 1000),
        ("orders", "order_id, customer_id, total, status", 4951),
    ):
        source = digest(compose, "source", [f"shop.{table}"], columns)
        shards = [f"shop_{database}.{table}_{number}" for database in (0, 1) for number in (0, 1)]
        assert source[0] == rows
        assert digest(compose, "target", shards, columns) == source
    compose.exec("scheduler", "lockstep", "verify", "/pipelines/shop.yaml")
    assert "Registered app lockstep" in compose.logs("spark-master")


def test_no_service_logs_a_secret(compose: Compose) -> None:
    for service in compose.services:
        text = compose.logs(service)
        assert [name for name, value in compose.environ.items() if len(value) >= 16 and value in text] == [], service


class Api:
    """Airflow's REST API behind the published port."""

    def __init__(self, port: int, password: str) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {"Content-Type": "application/json"}
        token = self._ask("POST", "/auth/token", {"username": "admin", "password": password})["access_token"]
        self._headers["Authorization"] = f"Bearer {token}"

    def __call__(self, path: str) -> Any:
        return self._ask("GET", f"/api/v2/{path}", None)

    def run(self, dag_id: str, compose: Compose) -> str:
        """Triggers a run and waits for its end; its state."""
        run_id = self._ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"]
        found: list[str] = []

        def ended() -> bool:
            found.append(self(f"dags/{dag_id}/dagRuns/{run_id}")["state"])
            return found[-1] in ("success", "failed")

        wait_for(ended, compose)
        return found[-1]

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def wait_for(condition: Callable[[], bool], compose: Compose) -> None:
    deadline_s = time.monotonic() + RUN_S
    while not condition():
        assert time.monotonic() < deadline_s, compose.logs("scheduler")[-6000:]
        time.sleep(2)


def mysql(compose: Compose, service: str, statement: str) -> list[list[str]]:
    command = f'mysql -h 127.0.0.1 -uroot -p"$MYSQL_ROOT_PASSWORD" -N -B -e "{statement}"'
    return [line.split("\t") for line in compose.exec(service, "bash", "-c", command).splitlines()]


def digest(compose: Compose, service: str, tables: list[str], columns: str) -> tuple[int, int]:
    """Rows of some tables, and a sum over all their values, in any order."""
    union = " UNION ALL ".join(f"SELECT {columns} FROM {table}" for table in tables)
    ((rows, total),) = mysql(
        compose, service, f"SELECT COUNT(*), SUM(CRC32(CONCAT_WS('|', {columns}))) FROM ({union}) AS t"
    )
    return int(rows), int(total)
