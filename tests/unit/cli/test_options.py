"""Files that a user names."""

from __future__ import annotations

from pathlib import Path

from cdc_core.cli.options import read_text
from cdc_core.errors import UsageError
from tests.lab.refusals import raises


def test_a_file_that_is_no_text_or_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("name=café\n", encoding="latin-1")
    with raises(UsageError, "usage.argument", match="keys.txt cannot be read: it is not UTF-8"):
        read_text(file, "keys, one a line")
    with raises(UsageError, "usage.argument", match="absent.txt cannot be read: No such file"):
        read_text(tmp_path / "absent.txt", "keys, one a line")
    file.write_text("name=café\r\nname=b\n", encoding="utf-8", newline="")
    assert read_text(file, "keys, one a line") == "name=café\nname=b\n"
