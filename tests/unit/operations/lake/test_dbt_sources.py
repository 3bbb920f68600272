"""What a sources.yml says of the tables of a lake."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.model.windows import Windows
from cdc_core.operations.lake.dbt_sources import DbtColumn, DbtSource, DbtTable, longest_window_minutes


def described(*tables: DbtTable, window_minutes: int = 60) -> dict[str, Any]:
    (source,) = DbtSource("shop_lake", "lake", "shop", tables, window_minutes).to_document()["sources"]
    assert isinstance(source, dict)
    return source


def columns(*names: str) -> tuple[DbtColumn, ...]:
    return tuple(DbtColumn(name, "long") for name in names)


def test_a_key_of_one_column_is_unique_and_one_of_several_is_so_as_a_row() -> None:
    single, several, _ = described(
        DbtTable("orders", columns("id", "v"), ("id",)), DbtTable("lines", columns("o", "line no"), ("o", "line no"))
    )["tables"]
    assert "data_tests" not in single
    assert [column.get("data_tests") for column in single["columns"]] == [["unique", "not_null"], None]
    assert [column["data_tests"] for column in several["columns"]] == [["not_null"], ["not_null"]]
    assert several["data_tests"] == [{"unique": {"arguments": {"column_name": "(o, {{ adapter.quote('line no') }})"}}}]
    assert [column.get("quote") for column in several["columns"]] == [None, True]


def test_a_comment_is_text_to_dbt_also_where_it_looks_like_a_template() -> None:
    table = DbtTable("t", (DbtColumn("id", "long", "{{ x }} {% y %}"),), ("id",), "{# z #}")
    found = described(table)["tables"][0]
    for text in (found["description"], found["columns"][0]["description"]):
        assert not any(mark in text for mark in ("{{", "{%", "{#"))
        assert text.replace("\u200b", "") in ("{{ x }} {% y %}", "{# z #}")


def test_a_table_is_late_after_two_windows_and_the_cuts_themselves_are_not_asked() -> None:
    source = described(DbtTable("t", columns("id"), ("id",)), window_minutes=60)
    assert source["config"]["freshness"]["warn_after"] == {"count": 120, "period": "minute"}
    assert source["tables"][-1]["config"] == {"freshness": None}


@pytest.mark.parametrize(
    ("schedule", "minutes"),
    [("0 * * * *", 60), ("0-29 * * * *", 31), ("* 8-17 * * *", 14 * 60 + 1), ("* * * * 1-5", 48 * 60 + 1)],
)
def test_a_schedule_with_pauses_is_as_long_as_the_longest(schedule: str, minutes: int) -> None:
    assert longest_window_minutes(Windows(schedule)) == minutes
