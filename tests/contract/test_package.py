"""What is packed: hatch's own selection for the wheel and the source distribution, without building either."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = {"lockstep", "cdc_core", "spark_jobs", "lockstep_expectations", "lockstep_airflow"}
FOLDERS = ("lockstep", "cdc_core", "spark_jobs", "expectations/lockstep_expectations", "plugins/lockstep_airflow")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packed(builder: type[WheelBuilder] | type[SdistBuilder]) -> set[str]:
    return {file.distribution_path for file in builder(str(ROOT)).recurse_included_files()}


def installed(name: str) -> str:
    """The path in site-packages of a file of the repository."""
    return name.removeprefix("expectations/").removeprefix("plugins/")


def in_repository(*folders: str) -> set[str]:
    """The files of folders that git has."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_wheel_has_every_file_of_its_packages_and_nothing_else() -> None:
    assert packed(WheelBuilder) == {installed(name) for name in in_repository(*FOLDERS)}


def test_the_source_distribution_has_the_documents_and_all_that_make_needs() -> None:
    files = packed(SdistBuilder)
    wanted = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "requirements.lock", ".ci/run"}
    assert wanted <= files
    everything = in_repository("docs", "dags", "docker", "examples", "tests", "benchmarks", "lockstep", "cdc_core")
    assert everything <= files


def test_the_commands_and_the_plugin_that_the_metadata_names_exist() -> None:
    project = PROJECT["project"]
    for reference in (*project["scripts"].values(), *project["entry-points"]["airflow.plugins"].values()):
        module, _, name = reference.partition(":")
        files = [
            path
            for root in (ROOT, ROOT / "plugins")
            for path in (root / f"{module.replace('.', '/')}.py", root / module.replace(".", "/") / "__init__.py")
            if path.is_file()
        ]
        tree = ast.parse(files[0].read_text(encoding="utf-8"))
        named = {getattr(node, "name", "") for node in tree.body}
        named |= {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert name in named, reference


def test_each_tool_looks_at_the_same_packages() -> None:
    """mypy, its hook, ruff's imports and the Makefile: a package that one of them leaves out is not checked."""
    checked = set(PROJECT["tool"]["mypy"]["packages"])
    assert checked == {*PACKAGES, "examples", "benchmarks"}
    assert set(PROJECT["tool"]["ruff"]["lint"]["isort"]["known-first-party"]) == checked
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    (mypy,) = (hook for hook in hooks if hook["id"] == "mypy")
    folders = checked - {"lockstep_airflow", "lockstep_expectations"} | {"plugins", "expectations"}
    assert set(mypy["files"].removeprefix("^(").partition(")")[0].split("|")) == folders
    linted = (ROOT / "Makefile").read_text(encoding="utf-8").partition("LINTED := $(wildcard ")[2].partition(")")[0]
    assert folders <= set(linted.split())


@pytest.mark.matrix
def test_a_wheel_that_is_built_can_be_read_without_the_repository(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert packed(WheelBuilder) <= set(archive.namelist())
    program = "import lockstep, cdc_core.stage.public; print(lockstep.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {program}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert found.stdout.startswith(str(wheel)), found.stderr
