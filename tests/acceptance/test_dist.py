"""What `make dist` makes: everything that a user needs is in it, and nothing else; all of it is of one version."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.lab.forked_commands import ROOT

PACKAGES = {
    "lockstep": ROOT, "cdc_core": ROOT, "spark_jobs": ROOT,
    "lockstep_expectations": ROOT / "expectations", "lockstep_airflow": ROOT / "plugins",
}  # fmt: skip

pytestmark = pytest.mark.matrix


def tracked(folder: Path) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, check=True).stdout
    return {name for name in listed.decode().split("\0") if name}


def test_a_release_has_all_files_its_version_and_what_it_was_tested_with(tmp_path: Path) -> None:
    subprocess.run(["make", "-C", ROOT, "dist", f"DIST={tmp_path}"], check=True, stdin=subprocess.DEVNULL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = f"lockstep_cdc-{project['version']}"
    assert {path.name for path in tmp_path.iterdir()} - {".gitignore"} == {
        f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.cdx.json"
    }  # fmt: skip

    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl") as wheel:
        metadata = message_from_bytes(wheel.read(f"{name}.dist-info/METADATA"))
        held = {path for path in wheel.namelist() if not path.startswith(f"{name}.dist-info/")}
    assert (metadata["Version"], metadata["License-Expression"]) == (project["version"], project["license"])
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert held == {f"{package}/{path}" for package, root in PACKAGES.items() for path in tracked(root / package)}
    assert {"lockstep/py.typed", "cdc_core/py.typed"} <= held

    with tarfile.open(tmp_path / f"{name}.tar.gz") as archive:
        sources = {getname.removeprefix(f"{name}/") for getname in archive.getnames()}
    assert tracked(ROOT) - sources <= {".dockerignore"}

    listed = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    assert (listed["metadata"]["component"]["name"], listed["metadata"]["component"]["version"]) == (
        project["name"],
        project["version"],
    )
    parts = {(component["name"].lower(), component["version"]) for component in listed["components"]}
    locked = {
        tuple(line.split()[0].split("=="))
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line[:1].isalnum()
    }
    assert parts <= locked
    names = {name for name, _ in parts}
    assert {"pyarrow", "pyspark", "apache-airflow", "mysql-replication"} <= names
    assert "pytest" not in names


def test_the_site_has_every_document_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    subprocess.run(["make", "-C", ROOT, "docs", f"DIST={tmp_path}"], check=True, stdin=subprocess.DEVNULL)
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert documents <= {path.stem for path in (tmp_path / "site").glob("*.html")}
    landing = (tmp_path / "site" / "index.html").read_text()
    assert {document for document in documents - {"index"} if f'href="{document}.html"' not in landing} == set()
