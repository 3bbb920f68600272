"""The files of docker/ agree with one another, and with what Airflow's chart documents."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cdc_core import config

DOCKER = Path(__file__).parents[2] / "docker"
CHART = {
    "executor", "airflowVersion", "defaultAirflowRepository", "defaultAirflowTag", "uid", "gid", "data",
    "fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName", "postgresql", "redis", "config", "extraEnvFrom",
    "env", "volumes", "volumeMounts", "scheduler", "dagProcessor", "triggerer", "statsd", "createUserJob",
}  # fmt: skip
"""Keys that the parameters reference of Airflow's chart 1.19 to 1.22 has, of those that are used."""


def values() -> Any:
    return yaml.safe_load((DOCKER / "helm-values.yaml").read_text(encoding="utf-8"))


def test_the_helm_values_are_of_the_chart_and_of_the_image() -> None:
    found, dockerfile = values(), (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    assert set(found) <= CHART
    assert f"USER {found['uid']}:{found['gid']}" in dockerfile
    assert f"AIRFLOW__CORE__DAGS_FOLDER={found['config']['core']['dags_folder']}" in dockerfile
    extra = yaml.safe_load(found["extraEnvFrom"])  # the chart takes a text, a template
    assert extra == [{"secretRef": {"name": "lockstep"}}]
    mounted = {volumeMount["mountPath"] for volumeMount in found["volumeMounts"]}
    assert {variable["value"] for variable in found["env"] if variable["name"] == "LOCKSTEP_PIPELINES"} == mounted
    project = (DOCKER.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"apache-airflow=={found["airflowVersion"]}"' in project
    assert f'\nversion = "{found["defaultAirflowTag"]}"\n' in project


def test_the_compose_file_takes_each_secret_from_the_file_that_make_env_writes(tmp_path: Path) -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    needed = set(re.findall(r"\$\{(\w+)(?::\?[^}]*)?\}", text))
    script = tmp_path / "make-env"
    script.write_bytes((DOCKER / "make-env").read_bytes())
    texts = []
    for _ in range(2):
        subprocess.run(["sh", script], check=True, capture_output=True)
        texts.append((tmp_path / ".env").read_text())
    assert texts[0] == texts[1], "passwords that servers know are kept"
    written = dict(line.split("=", 1) for line in texts[0].splitlines())
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert needed == set(written)
    assert len(set(written.values())) == len(written)
    assert all(f"${{{name}:?" in text for name in needed), "a missing one is an error that says what to do"


def test_the_pipeline_of_the_compose_set_names_what_the_set_exports() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    pipeline = config.load(DOCKER / "shop/shop.yaml")
    exported = compose["services"]["scheduler"]["environment"]
    named = (*pipeline.references, *pipeline.lake_references, "env:LOCKSTEP_META")
    assert {name.removeprefix("env:") for name in named} <= set(exported)
    assert {target.name for target in pipeline.targets} == {"shards", "lake"}
    script = (DOCKER / "shop/postgres.sql").read_text(encoding="utf-8")
    databases = re.findall(r"^CREATE DATABASE (\w+);$", script, re.MULTILINE)
    assert {exported[name].rpartition("/")[2] for name in ("LOCKSTEP_META", "LAKE_CATALOG")} == set(databases)
    assert re.search(r"^ARG EXTRAS=.*\blake\b", (DOCKER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"AIRFLOW_CONN_{pipeline.spark.connection.upper()}" in exported


def test_every_image_of_the_compose_set_is_pinned_by_a_tag() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    images = {service["image"] for service in compose["services"].values()}
    pulled = {image for image in images if not image.startswith("localhost/")}
    assert len(pulled) == 3
    assert [image for image in pulled if not re.search(r":[\w.-]*\d", image)] == []
