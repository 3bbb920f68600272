"""The names of a merged row's columns and operations are in model/merged_columns.py alone."""

from __future__ import annotations

import re

import pytest

from cdc_core.model import merged_columns
from cdc_core.model.staged_columns import BOOKKEEPING
from tests.contract.product_source import ROOT, modules, text_of

COLUMNS = [
    value for value in vars(merged_columns).values() if isinstance(value, str) and re.fullmatch("_cdc_[a-z_]+", value)
]
HOME = ROOT / "cdc_core/model/merged_columns.py"


PRODUCT = modules("cdc_core", "spark_jobs", "expectations/lockstep_expectations", "plugins/lockstep_airflow")


@pytest.mark.parametrize("column", sorted(set(COLUMNS) - {field.name for field in BOOKKEEPING}))
def test_no_module_spells_a_column_of_its_own(column: str) -> None:
    spelled = re.compile(rf"""["']{column}["']""")
    assert [path for path in PRODUCT if spelled.search(text_of(path))] == [HOME]


@pytest.mark.parametrize("folder", ["cdc_core/targets", "spark_jobs"])
def test_no_operation_of_a_merged_row_is_written_as_a_bare_letter(folder: str) -> None:
    bare = re.compile(r"""_o (=|<>|IN) \(?'[a-z]'|OP\) == ["']|(equal|is_in)\(ops?, ["']|_s (=|<>) \d""")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in modules(folder)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if bare.search(line)
    ]
    assert wrong == []
