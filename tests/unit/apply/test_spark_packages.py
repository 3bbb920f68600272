"""The archive of packages for executors."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tarfile
from pathlib import Path

import pytest

from cdc_core.apply import spark_packages
from cdc_core.apply.spark_packages import BUCKET_MODULES, MODULES, pack, required
from cdc_core.errors import Refused


def test_the_packages_that_executors_need_come_with_what_these_require() -> None:
    names = {one.metadata["Name"].lower() for one in required()}
    assert names >= {name.lower() for name in (*MODULES.values(), *BUCKET_MODULES.values())}
    assert {"llvmlite", "pydantic_core", "botocore", "cffi"} <= names
    assert names & {"apache-airflow", "pyspark", "great-expectations", "duckdb"} == set()


def test_an_archive_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [one for one in required() if one.metadata["Name"] in ("PyMySQL", "PyYAML")]
    monkeypatch.setattr(spark_packages, "required", lambda: few)
    archive = tmp_path / "packages.tar.gz"
    assert [one.partition(" ")[0] for one in pack(archive)] == ["PyMySQL", "PyYAML"]
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert {"pymysql/__init__.py", "yaml/__init__.py"} <= set(names)
    assert not any(name.startswith(("/", "..")) or "__pycache__" in name for name in names)
    before = archive.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(Refused) as caught:
        pack(archive)
    assert (caught.value.code, archive.read_bytes()) == ("spark.pack", before)
    assert list(tmp_path.iterdir()) == [archive]


def test_an_archive_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        pack(tmp_path / "packages.tar")
    assert caught.value.code == "spark.pack"


def test_the_list_names_every_package_that_the_code_of_executors_imports_at_once() -> None:
    """By what the modules of write, filter and merge import when they are imported, all of them in this repository."""
    root = Path(__file__).parents[3]
    seen: set[Path] = set()
    others: set[str] = set()
    pending = [root / "spark_jobs" / f"{name}.py" for name in ("filter", "write", "merge", "probe")]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            for name in names:
                top = name.partition(".")[0]
                if top in ("cdc_core", "spark_jobs"):
                    found = root.joinpath(*name.split("."))
                    pending += [one for one in (found.with_suffix(".py"), found / "__init__.py") if one.is_file()]
                elif top not in sys.stdlib_module_names:
                    others.add(top)
    assert others - set(MODULES) == {"pyspark"}
    assert all(importlib.util.find_spec(name) for name in MODULES)
