"""model/merged_columns.py names the modules that write and read each column of a merged row: they do, and no others."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from cdc_core.model import merged_columns as merged
from cdc_core.model.merged_columns import FILTER_ONLY, FILTERED_COLUMNS, MERGED_COLUMNS, MergedColumn

ROOT = Path(__file__).parents[2]
COLUMNS = (*MERGED_COLUMNS, *FILTERED_COLUMNS)
HOME = "cdc_core.model.merged_columns"


def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for folder in ("cdc_core", "spark_jobs", "expectations/lockstep_expectations", "plugins/lockstep_airflow"):
        for path in (ROOT / folder).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    return found


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Each module with each name that it imports from model/merged_columns.py."""
    return frozenset(
        (name, alias.name)
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == HOME
        for alias in node.names
    )


def users(constant: str) -> set[str]:
    """The modules that import a constant of model/merged_columns.py."""
    return {module for module, name in imports() if name == constant}


def constant_of(column: MergedColumn) -> str:
    return next(name for name, value in vars(merged).items() if name.isupper() and value == column.name)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_is_used_by_the_modules_that_the_table_names(column: MergedColumn) -> None:
    assert users(constant_of(column)) == {*column.written, *column.read}


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_no_module_spells_a_column_of_its_own(column: MergedColumn) -> None:
    spelled = re.compile(rf"""["']{column.name}["']""")
    assert {name for name, path in modules().items() if spelled.search(path.read_text(encoding="utf-8"))} == {HOME}


def test_what_merge_says_to_filter_alone_are_merged_columns() -> None:
    assert {column.name for column in MERGED_COLUMNS} > FILTER_ONLY


@pytest.mark.parametrize("folder", ["cdc_core/targets", "spark_jobs"])
def test_no_operation_of_a_merged_row_is_written_as_a_bare_letter(folder: str) -> None:
    bare = re.compile(r"""_o (=|<>|IN) \(?'[a-z]'|OP\) == ["']|(equal|is_in)\(ops?, ["']|_s (=|<>) \d""")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bare.search(line)
    ]
    assert wrong == []
