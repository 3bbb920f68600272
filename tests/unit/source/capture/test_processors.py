"""Functions of a user's own: what they may do to the columns of a table, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import EntryPoint
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_core.config import CaptureRules, Processor, RowFilter
from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.source.capture import Capture, processors
from tests.lab.made_blocks import Change, Made, block
from tests.lab.refusals import raises

BEGIN = Position(0, "binlog.000001", 4)
ITEMS = TableSchema(
    "shop",
    "items",
    tuple(
        Column(name, parse_column_type(kind), key_part=1 if name == "id" else None)
        for name, kind in (("id", "int"), ("name", "varchar(9)"), ("day", "date"))
    ),
)
ROW: dict[str, Any] = {"id": 1, "name": "Bolt", "day": date(2026, 1, 1)}


def shout(rows: pa.RecordBatch, table: str, *, mark: str = "!") -> pa.RecordBatch:
    """Names in capitals, and how long they are."""
    names = pc.binary_join_element_wise(pc.utf8_upper(rows["name"]), mark, "")
    at = rows.schema.get_field_index("name")
    return rows.set_column(at, "name", names).append_column("length", pc.utf8_length(names))


def no_day(rows: pa.RecordBatch, table: str) -> pa.RecordBatch:
    return rows.drop_columns(["day"])


def first_day(rows: pa.RecordBatch, table: str) -> pa.RecordBatch:
    return rows.set_column(2, "day", pc.fill_null(rows["day"], date(1970, 1, 1)))


def broken(rows: pa.RecordBatch, table: str) -> pa.RecordBatch:
    raise ValueError("no idea")


WRONG: dict[str, Callable[..., Any]] = {
    "fewer rows": lambda rows, table: rows.slice(1),
    "the key": lambda rows, table: rows.select(["name"]),
    "another key": lambda rows, table: rows.set_column(0, "id", pc.negate(rows["id"])),
    "twice": lambda rows, table: rows.append_column("name", rows["name"]),
    "twice for servers": lambda rows, table: rows.append_column("Name", rows["name"]),
    "no batch": lambda rows, table: rows.to_pydict(),
    "raised ValueError at test_processors.py:": broken,
    "type": lambda rows, table: rows.append_column("x", pa.nulls(rows.num_rows)),
    "bookkeeping": lambda rows, table: rows.append_column("_cdc_op", rows["name"]),
    "other columns": lambda rows, table: rows.append_column(f"x{rows['name'][0]}", rows["id"]),
}  # fmt: skip


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Capture]]:
    """A capture with these functions of this module, as entry points."""

    def made(*names: str, **rules: Any) -> Capture:
        found = [EntryPoint(name, f"{__name__}:{name}", processors.GROUP) for name in (*names, "other")]
        functions = {name: globals().get(name) or WRONG.get(name) for name in names}
        monkeypatch.setattr(processors, "entry_points", lambda group: found)
        monkeypatch.setattr(EntryPoint, "load", lambda self: functions[self.name])
        options = rules.pop("options", {})
        used = tuple(Processor(match=r"shop\..*", use=name, options=options) for name in names)
        return Capture(CaptureRules(include=(".*",), processors=used, **rules))

    return made


def rows(capture: Capture, *changes: Change) -> list[dict[str, Any]]:
    return list(capture.apply(block([Made(list(changes))], BEGIN)).tables[0].rows.to_pylist())


def test_a_processor_changes_and_adds_columns_of_both_images(use: Callable[..., Capture]) -> None:
    capture = use("shout", options={"mark": "?"})
    changes = Change(ITEMS, "c", ROW), Change(ITEMS, "u", ROW | {"name": "nut"}, ROW), Change(ITEMS, "d", ROW)
    got = rows(capture, *changes)
    assert [(row["_cdc_op"], row["name"], row["length"]) for row in got] == [
        ("c", "BOLT?", 5), ("u", "NUT?", 4), ("d", "BOLT?", 5),
    ]  # fmt: skip
    assert [row["_before"] and row["_before"]["name"] for row in got] == [None, "BOLT?", None]
    shape = capture.shape(ITEMS)
    assert [str(column.type) for column in shape.columns] == ["int", "varchar(9)", "date", "int"]
    assert shape.key == ("id",)


def test_processors_work_in_order_and_before_conditions_on_rows(use: Callable[..., Capture]) -> None:
    capture = use("shout", "no_day", rows=(RowFilter(match=".*", where="length == 5 and name == 'BOLT!'"),))
    (row,) = rows(capture, Change(ITEMS, "c", ROW), Change(ITEMS, "c", ROW | {"name": "screw"}))
    assert list(row)[:4] == ["id", "name", "length", "_before"]


def test_the_exact_text_of_a_value_goes_where_the_column_has_one_now(use: Callable[..., Capture]) -> None:
    odd = Change(ITEMS, "c", ROW | {"day": None}, literal={"day": "0000-00-00", "name": "x"})
    (row,) = rows(use("first_day"), odd)
    assert (row["day"], row["_cdc_literal"]) == (date(1970, 1, 1), None)


def test_a_truncate_has_no_row_for_a_processor_and_passes_every_condition(use: Callable[..., Capture]) -> None:
    capture = use("first_day", "shout", rows=(RowFilter(match=".*", where="length == 5"),))
    got = rows(capture, Change(ITEMS, "c", ROW), Change(ITEMS, "t", {}), Change(ITEMS, "u", ROW | {"id": 2}, ROW))
    assert [(row["_cdc_op"], row["id"], row["name"], row["length"], row["day"]) for row in got] == [
        ("c", 1, "BOLT!", 5, ROW["day"]), ("t", None, None, None, None), ("u", 2, "BOLT!", 5, ROW["day"]),
    ]  # fmt: skip
    assert got[2]["_before"]["name"] == "BOLT!"
    (alone,) = rows(capture, Change(ITEMS, "t", {}))
    assert alone == got[1] | {"_cdc_row": alone["_cdc_row"]}


@pytest.mark.parametrize("name", WRONG)
def test_a_processor_that_breaks_its_contract_is_refused(use: Callable[..., Capture], name: str) -> None:
    with pytest.raises(Refused) as raised:
        rows(use(name), Change(ITEMS, "u", ROW, ROW | {"name": "old"}))
    code = {"type": "source.unsupported_table", "bookkeeping": "source.unsupported_table"}.get(name, "config.function")
    assert raised.value.code == code


def test_a_processor_never_sees_a_value_that_the_log_does_not_carry(use: Callable[..., Capture]) -> None:
    with raises(DataAtRisk, "sink.unknown_value"):
        rows(use("shout"), Change(ITEMS, "u", ROW, ROW, absent=("_before.day",)))


def test_a_processor_that_is_not_installed_is_an_error_of_the_pipeline_with_those_that_are() -> None:
    capture = Capture(CaptureRules(include=(".*",), processors=(Processor(match=".*", use="nothing"),)))
    with raises(UsageError, "install.missing", match="'nothing' is not installed"):
        capture.shape(ITEMS)
