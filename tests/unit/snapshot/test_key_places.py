"""Where a key lies between the ends of a table, for estimates: right for keys that lie evenly, and never an error."""

from __future__ import annotations

import random
import uuid

import pytest

from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.snapshot.key_places import fraction


def text(value: str) -> str:
    return f"_utf8mb4 X'{value.encode().hex()}' COLLATE utf8mb4_general_ci"


def binary(value: bytes) -> str:
    return f"X'{value.hex()}'"


def schema(kind: str, collation: str = "utf8mb4_general_ci") -> TableSchema:
    charset = "" if "binary" in kind or not kind.startswith(("char", "varchar")) else "utf8mb4"
    return TableSchema(
        "d", "t", (Column("k", parse_column_type(kind, charset=charset, collation=collation), False, 1),)
    )


CHANCE = random.Random(7)
BASE_36 = "0123456789abcdefghijklmnopqrstuvwxyz"
UUIDS = [uuid.UUID(int=CHANCE.getrandbits(128), version=4) for _ in range(4000)]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("char(36)", sorted(text(str(one)) for one in UUIDS)),
        ("char(32)", sorted(text(one.hex) for one in UUIDS)),
        ("binary(16)", sorted(binary(one.bytes) for one in UUIDS)),
        ("varchar(20)", [text(f"order-{n:09d}") for n in range(4000)]),
        ("varchar(20)", sorted(text("".join(CHANCE.choices(BASE_36, k=8))) for _ in UUIDS)),
        ("decimal(10,2)", [f"{n}.50" for n in range(4000)]),
        ("datetime", [f"'{2015 + n // 360}-{n // 30 % 12 + 1:02d}-{n % 30 + 1:02d} 10:00'" for n in range(4000)]),
    ],
    ids=["uuid", "hex", "binary uuid", "numbered", "base 36", "decimal", "dates"],
)  # fmt: skip
def test_of_keys_that_lie_evenly_the_share_is_right_but_for_chance(kind: str, found: list[str]) -> None:
    for number in range(len(found) // 20, len(found)):
        share = fraction(schema(kind), (found[0],), (found[number],), (found[-1],))
        assert share is not None
        assert (
            abs(share / (number / (len(found) - 1)) - 1) < 0.12 if number < 800 else abs(share - number / 4000) < 0.05
        )


@pytest.mark.parametrize(
    ("kind", "least", "key", "limit"),
    [
        ("varchar(9)", text(""), text("a"), text("")),
        ("varchar(9)", text("a"), text("\u00e9\u4e2d"), text("z")),
        ("date", "'0000-00-00'", "'0000-00-00'", "'2024-02-31'"),
        ("time", "'-100:00:00'", "'00:00:00'", "'100:00:00'"),
        ("varbinary(9)", binary(b""), binary(b"a"), binary(b"b")),
        ("double", "-1.5e0", "0.0e0", "1e300"),
    ],
)
def test_no_key_is_outside_and_none_is_an_error(kind: str, least: str, key: str, limit: str) -> None:
    for one in (least, key, limit):
        found = fraction(schema(kind), (least,), (one,), (limit,))
        assert found is None or 0 <= found <= 1
