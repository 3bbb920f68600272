"""A plain `pip install lockstep-cdc`, without any extra: reads, stages and shows; what needs an extra says which."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_core.process import extras
from tests.acceptance.conftest import CommandLine
from tests.lab.forked_commands import ForkedCommands

ROOT = Path(__file__).parents[2]
OF_EXTRAS = (
    "airflow", "boto3", "botocore", "fastapi", "great_expectations", "jinja2", "pandas", "polars", "psycopg", "pyspark",
)  # fmt: skip

HIDING = f"""
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {OF_EXTRAS!r} else found(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[CommandLine]:
    """A user's shell with a Python that has none of the extras' packages."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDING)
    with ForkedCommands(folder) as commands:
        yield CommandLine(tmp_path, commands)


def test_without_extras_a_source_is_staged_and_shown_and_the_rest_names_its_extra(
    source_database: Any, plain: CommandLine
) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO orders VALUES (1, 'a')"
    )
    plain.environ["SHOP"] = source_database.server.url
    plain("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*")
    plain("check", "shop.yaml")
    plain("extract", "shop.yaml")
    plain("snapshot", "shop.yaml")
    found = plain("stage", "sql", "shop.yaml", f'SELECT id, v FROM "{name}.orders"')
    assert found.document["rows"] == [[1, "a"]]
    plain("stage", "verify", "shop.yaml")
    plain("status", "shop.yaml")
    assert "`lockstep extract shop.yaml`" in plain("run", "shop.yaml", code=2).error["remedy"]
    plain("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", "--target", "env:COPY", "--force")
    refused = plain("run", "shop.yaml", code=2).error
    assert refused["code"] == "install.missing"
    assert "pip install 'lockstep-cdc[spark,quality]'" in refused["remedy"]
    file = plain.directory / "shop.yaml"
    file.write_text(re.sub(r"(?m)^  uri: .*$", "  uri: s3://bucket", file.read_text()))
    refused = plain("stage", "ls", "shop.yaml", code=2).error
    assert (refused["code"], refused["remedy"]) == ("install.missing", "pip install 'lockstep-cdc[s3]'")


def test_the_extras_that_errors_name_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(project["optional-dependencies"]) - {"all"}
    assert set(extras._MODULES) | {"openlineage", "postgres"} == named  # no command needs these two by name
    assert project["optional-dependencies"]["all"] == [f"lockstep-cdc[{','.join(sorted(named))}]"]
    for extra in named:
        assert f"lockstep-cdc[{extra}]" in (extras.__doc__ or "")


@pytest.mark.parametrize("extra", sorted(extras._MODULES))
def test_an_extra_that_is_there_is_not_missed(extra: str) -> None:
    extras.require(extra, by="the tests, which have them all")
