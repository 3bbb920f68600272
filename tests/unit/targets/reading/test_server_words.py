"""What is shown of a server's message about a row: names, never values."""

from __future__ import annotations

import pytest

from cdc_core.targets.reading.target_faults import without_values


@pytest.mark.parametrize(
    ("number", "text", "shown"),
    [
        (1062, "Duplicate entry 'canary-x' for key 't.code'", "Duplicate entry for key 't.code'"),
        (1062, "Duplicate entry 'it's for key 'canary'' for key 'PRIMARY'", "Duplicate entry for key 'PRIMARY'"),
        (
            1366,
            "Incorrect integer value: 'canary' for column `d`.`t`.`n` at row 1",
            "Incorrect integer value for column `d`.`t`.`n` at row 1",
        ),
        (
            1366,
            "Incorrect string value: 'canary\\xF0' for column 'n' at row 7",
            "Incorrect string value for column 'n' at row 7",
        ),
        (1292, "Truncated incorrect DOUBLE value: 'canary'", "Truncated incorrect DOUBLE value"),
        (1411, "Incorrect time value: 'canary' for function f", "Incorrect time value for function f"),
        (1406, "Data too long for column 'code' at row 1", "Data too long for column 'code' at row 1"),
        (9999, "Something about 'canary' and 'never ends canary", "Something about '…' and '…'"),
        (1062, "Duplicate entry 'canary\n" + "x" * 3000, "Duplicate entry '…'"),
    ],
)  # fmt: skip
def test_values_are_left_out_and_names_are_not(number: int, text: str, shown: str) -> None:
    assert without_values(number, text) == shown
