"""Columns left out and masked: nothing of their values goes on, and equal values have equal hashes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest

from cdc_core.config import CaptureRules, Columns, Route
from cdc_core.errors import Refused, UsageError
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.source.capture import Capture
from tests.lab.made_blocks import Change, Made, block
from tests.lab.refusals import raises
from tests.lab.shell import export, shell

BEGIN = Position(0, "binlog.000001", 4)
SALT = "päpper"
TYPES = {
    "id": "int", "email": "varchar(40)", "card": "varbinary(9)", "born": "date", "pay": "decimal(9,2)", "note": "text",
    "shape": "vector(3)",
}  # fmt: skip
PEOPLE = TableSchema(
    "shop",
    "people",
    tuple(
        Column(name, parse_column_type(kind), nullable=name != "id", key_part=1 if name == "id" else None)
        for name, kind in TYPES.items()
    ),
)
ROW: dict[str, Any] = {
    "id": 1, "email": "Ü@x", "card": b"\x00\xff", "born": date(2000, 1, 2), "pay": Decimal("1.50"), "note": "n",
    "shape": [1.0],
}  # fmt: skip


def hashed(text: str | bytes) -> str:
    return sha256(SALT.encode() + (text if isinstance(text, bytes) else text.encode())).hexdigest()


def capture(exclude: str = "", mask: str = "", salt: str | None = SALT) -> Capture:
    if salt is None:
        shell.delenv("SALT", raising=False)
    else:
        export({"SALT": salt})
    patterns = {name: (rf"shop\.people\.({text})",) for name, text in (("exclude", exclude), ("mask", mask)) if text}
    columns = Columns(salt="env:SALT", **patterns)
    return Capture(CaptureRules(include=(".*",), columns=columns))


def rows(rule: Capture, *changes: Change) -> list[dict[str, Any]]:
    return list(rule.apply(block([Made(list(changes))], BEGIN)).tables[0].rows.to_pylist())


def test_what_is_excluded_is_in_neither_image_nor_text_nor_definition() -> None:
    rule = capture(exclude="note|born")
    update = Change(
        PEOPLE, "u", ROW | {"born": None}, ROW | {"note": "secret"}, literal={"born": "2000-02-31", "email": "?"},
        absent=("note", "card", "_before.born"),
    )  # fmt: skip
    (row,) = rows(rule, update)
    assert not {"note", "born"} & {*row, *row["_before"]}
    assert row["_cdc_literal"] == [("email", "?")]
    assert json.loads(row["_cdc_absent"]) == ["card"]
    assert [column.name for column in rule.shape(PEOPLE).columns] == ["id", "email", "card", "pay", "shape"]
    assert "secret" not in str(row)


def test_a_masked_value_is_the_hash_of_salt_and_text_and_null_stays_null() -> None:
    rule = capture(mask="email|card|born|pay|id")
    (row,) = rows(rule, Change(PEOPLE, "u", ROW, ROW | {"email": None}))
    assert row["email"] == hashed("Ü@x")
    assert row["_before"]["email"] is None
    assert (row["card"], row["born"], row["pay"]) == (hashed(b"\x00\xff"), hashed("2000-01-02"), hashed("1.50"))
    assert row["id"] == row["_before"]["id"] == hashed("1")
    shape = rule.shape(PEOPLE)
    assert shape.key == ("id",)
    assert str(shape.column("email").type) == "char(64)"


def test_a_masked_value_is_hashed_where_its_column_has_the_type_of_a_hash() -> None:
    token = parse_column_type("char(64)", charset="ascii", collation="ascii_bin")
    assert token == capture(mask="email").shape(PEOPLE).column("email").type
    columns = tuple(replace(column, type=token) if column.name == "email" else column for column in PEOPLE.columns)
    people = replace(PEOPLE, columns=columns)
    (row,) = rows(capture(mask="email"), Change(people, "u", ROW, ROW | {"email": "before"}))
    assert (row["email"], row["_before"]["email"]) == (hashed("Ü@x"), hashed("before"))


@pytest.mark.parametrize("text", ["0.00000000", "0.00000001", "-0.00000010", "1.50000000"])
def test_a_masked_decimal_is_hashed_with_all_of_its_digits(text: str) -> None:
    """Arrow prints 0E-8, 1E-8 and -1.0E-7."""
    wide = parse_column_type("decimal(20,8)")
    columns = tuple(replace(column, type=wide) if column.name == "pay" else column for column in PEOPLE.columns)
    image = ROW | {"pay": Decimal(text)}
    (row,) = rows(capture(mask="pay"), Change(replace(PEOPLE, columns=columns), "u", image, image))
    assert row["pay"] == row["_before"]["pay"] == hashed(text)


def test_the_exact_text_of_a_masked_value_is_hashed_too_and_does_not_go_on() -> None:
    texts = {"born": "2000-02-31", "_before.born": "0000-00-00"}
    (row,) = rows(capture(mask="born"), Change(PEOPLE, "u", ROW | {"born": None}, ROW | {"born": None}, literal=texts))
    assert (row["born"], row["_before"]["born"]) == (hashed("2000-02-31"), hashed("0000-00-00"))
    assert row["_cdc_literal"] is None


def test_an_absent_value_of_a_masked_column_stays_absent() -> None:
    (row,) = rows(capture(mask="email"), Change(PEOPLE, "u", ROW | {"email": None}, ROW, absent=("email",)))
    assert (row["email"], row["_cdc_absent"]) == (None, '["email"]')


def test_equal_values_have_equal_hashes_in_every_block_and_row() -> None:
    rule = capture(mask="id")
    blocks = [rule.apply(block([Made([Change(PEOPLE, "c", ROW | {"id": n % 3})]) for n in range(9)], BEGIN))] * 2
    seen = [read_block.tables[0].rows.column("id").to_pylist() for read_block in blocks]
    assert seen == [[hashed(str(n % 3)) for n in range(9)]] * 2


def test_a_table_of_which_no_pattern_matches_goes_on_as_it_is() -> None:
    rule = Capture(
        CaptureRules(include=(".*",), columns=Columns(exclude=(r"shop\.others\..*",))), (Route(match=".*", to="all"),)
    )
    assert rule.shape(PEOPLE) is PEOPLE
    assert rows(rule, Change(PEOPLE, "c", ROW))[0]["note"] == "n"


@pytest.mark.parametrize(
    ("rule", "says"),
    [({"exclude": "id"}, "part of the key"), ({"exclude": ".*"}, "no column"), ({"mask": "shape"}, "VECTOR")],
)
def test_what_cannot_be_left_out_or_masked_is_refused_before_a_row(rule: dict[str, str], says: str) -> None:
    with raises(Refused, "config.table_rule", match=says):
        capture(**rule).shape(PEOPLE)


@pytest.mark.parametrize("salt", [None, ""])
def test_without_its_salt_nothing_is_masked_with_another(salt: str | None) -> None:
    with raises(UsageError, "config.unset", match="SALT"):
        capture(mask="email", salt=salt).shape(PEOPLE)


def test_a_salt_shows_in_no_repr_of_a_rule() -> None:
    rule = capture(mask="email")
    rule.shape(PEOPLE)
    assert SALT not in repr(rule)
