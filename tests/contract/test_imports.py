"""Imports point one way, whether at the top of a module, inside a function or for types only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.product_source import ROOT, modules, nodes, text_of

LAYERS = {
    "values": "errors model process",
    "formats": "binlog results config history mysql",
    "stores": "ring stage meta",
    "servers": "source targets lake",
    "operations": "operations",
    "faces": "cli",
}
"""The packages and modules of cdc_core. Each imports from its own layer and from those above it in this list, and
inside a layer no modules import one another in a circle."""
LAYER_OF = {name: number for number, names in enumerate(LAYERS.values()) for name in names.split()}


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, wherever in it, with the line."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            argument = node.args[0]
            assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: imports what nobody can check"
            yield str(argument.value), node.lineno


def package_of(name: str) -> str | None:
    """The package of a dotted name below cdc_core; None for other packages and for cdc_core itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == "cdc_core" and len(parts) > 1 else None


def test_architecture_md_has_the_layers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = "\n".join(f"{layer:<12}{names}" for layer, names in LAYERS.items())
    assert table in text, f"put this under 'Layers':\n{table}"


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_map_names_every_package(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    folders = sorted(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "cdc_core").glob("*/__init__.py"))
    others = ["lockstep", "spark_jobs", "plugins/lockstep_airflow", "expectations/lockstep_expectations"]
    assert [name for name in [*folders, *others] if f"`{name}`" not in text] == []


def test_every_package_has_a_layer_and_imports_from_no_higher_one() -> None:
    wrong = []
    for path in modules("cdc_core"):
        package = path.relative_to(ROOT / "cdc_core").parts[0].removesuffix(".py")
        for name, line in imported(path):
            other = package_of(name)
            if package != "__init__" and other is not None and LAYER_OF[other] > LAYER_OF[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {package} imports {name}")
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    """But those of the command line, one of which reads the commands of all."""
    imports = {}
    for path in modules("cdc_core"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith("cdc_core.cli"):
            imports[name] = [other for other, _ in imported(path)]
    below = {
        name: {other if other in imports else other.rpartition(".")[0] for other in others} - {name}
        for name, others in imports.items()
    }
    while leaves := [name for name, others in below.items() if not others & below.keys()]:
        for name in leaves:
            del below[name]
    assert sorted(below) == [], "each of these imports another of them"


DRIVER = "spark_jobs.driver.Driver"
FACES = ("cdc_core/cli", "plugins", "lockstep")
"""Where the driver of jobs is made."""
FOR_DAGS = "lockstep/airflow.py"
"""The public names of the plugin."""


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        (
            "cdc_core",
            {"airflow", "pyspark", "spark_jobs", "lockstep_airflow", "plugins", "lockstep_expectations", "examples"},
        ),
        ("spark_jobs", {"airflow", "lockstep_airflow", "plugins", "examples"}),
        ("plugins", {"pyspark", "spark_jobs", "lockstep_expectations", "examples"}),
        (
            "lockstep",
            {"airflow", "pyspark", "spark_jobs", "lockstep_airflow", "plugins", "lockstep_expectations", "examples"},
        ),
        ("expectations", {"airflow", "lockstep_airflow", "plugins", "spark_jobs", "examples"}),
        ("dags", {"pyspark", "spark_jobs", "lockstep_expectations", "examples"}),
    ],
)
def test_the_core_knows_neither_airflow_nor_spark_and_plugin_and_jobs_not_each_other(
    folder: str, others: set[str]
) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(folder)
        for name, line in imported(path)
        if name.split(".")[0] in others
        and not (name == DRIVER and any(path.is_relative_to(ROOT / face) for face in FACES))
        and path != ROOT / FOR_DAGS
    ]
    assert wrong == []


def test_the_plugin_is_a_face_of_its_own() -> None:
    """It calls the operations, as the command line does."""
    assert [path for path in modules("plugins") if "cdc_core.cli" in text_of(path)] == []


HEAVY = (
    "pyspark",
    "numba",
    "pyarrow",
    "numpy",
    "pandas",
    "great_expectations",
    "airflow",
    "boto3",
    "duckdb",
    "sqlalchemy",
    # What a person who asks for help waits for.
    "cdc_core.config",
    "croniter",
    "yaml",
)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["extract", "--help"], ["stage", "ls", "--help"]])
def test_help_of_the_command_line_imports_nothing_heavy(arguments: list[str]) -> None:
    assert loaded_by(arguments) == set()


def loaded_by(arguments: list[str]) -> set[str]:
    """The heavy modules that a command imports."""
    script = (
        f"import sys; sys.argv = ['lockstep', *{arguments!r}]\n"
        "from cdc_core.cli import main\n"
        "try: main()\n"
        "except SystemExit as left: assert left.code == 0, left.code\n"
        f"print('LOADED', *(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, *found = done.stdout.splitlines()[-1].split(" ")
    assert first == "LOADED"
    return set(found)


def test_no_module_of_the_library_prints() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("cdc_core", "spark_jobs", "plugins", "expectations")
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []
