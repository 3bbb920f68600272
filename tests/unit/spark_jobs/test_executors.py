"""The packages that docs/spark.md lists for executors."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.lab.foreign_python import PACKAGES


def test_the_list_names_every_package_that_the_code_of_executors_imports_at_once() -> None:
    """By what write, filter, merge and suites import when they are imported, all of them in this repository."""
    root = Path(__file__).parents[3]
    seen: set[Path] = set()
    others: set[str] = set()
    pending = [root / "spark_jobs" / f"{name}.py" for name in ("filter", "write", "merge", "suite_parts", "probe")]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
            for name in names:
                top = name.partition(".")[0]
                if top in ("cdc_core", "spark_jobs"):
                    found = root.joinpath(*name.split("."))
                    pending += [file for file in (found.with_suffix(".py"), found / "__init__.py") if file.is_file()]
                elif top not in sys.stdlib_module_names:
                    others.add(top)
    assert others - set(PACKAGES) == {"pyspark"}
    text = (root / "docs" / "spark.md").read_text()
    assert [name for name in PACKAGES.values() if name not in text] == []
