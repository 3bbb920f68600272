"""A name leads to one module, and to one class."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.contract.product_source import ROOT, modules, nodes


def test_names_of_modules_and_classes_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules("cdc_core", "spark_jobs", "plugins", "dags", "expectations", "lockstep"):
        at = str(path.relative_to(ROOT))
        if path.stem not in ("__init__", "__main__"):
            places[f"{path.stem}.py"].append(at)
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(at)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
