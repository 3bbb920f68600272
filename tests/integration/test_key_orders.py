"""The orders of texts in the model of copies (tests/unit/operations/copy/copy_keys.py) are those of the servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operations.copy.copy_keys import GENERAL, TEXTS, UNICODE_9, Collation


@pytest.mark.parametrize(
    ("name", "collation"),
    [("mariadb", GENERAL), ("mysql9", GENERAL), ("mysql9", UNICODE_9)],
    ids=lambda value: value.name if isinstance(value, Collation) else value,
)
def test_the_model_of_copies_orders_texts_as_the_servers_do(
    name: str, collation: Collation, request: pytest.FixtureRequest
) -> None:
    server: Any = request.getfixturevalue(name)
    texts = [text for spellings in TEXTS[collation] for text in spellings]
    listed = " UNION ALL ".join(
        f"SELECT {at} AS n, _utf8mb4 X'{text.encode().hex()}' COLLATE {collation.name} AS t"
        for at, text in enumerate(texts)
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SELECT a.n, b.n, (a.t > b.t) - (a.t < b.t), a.t = b.t FROM ({listed}) a CROSS JOIN ({listed}) b"
        )
        found = cursor.fetchall()
    assert len(found) == len(texts) ** 2
    for one, other, order, equal in found:
        assert collation.compare(texts[one], texts[other]) == order, (texts[one], texts[other])
        assert equal == (order == 0)


@pytest.mark.parametrize("collation", TEXTS, ids=lambda collation: collation.name)
def test_spellings_of_one_key_are_equal_and_those_of_different_keys_are_not(collation: Collation) -> None:
    numbered = [(number, text) for number, spellings in enumerate(TEXTS[collation]) for text in spellings]
    for number, text in numbered:
        for other_number, other in numbered:
            assert (collation.compare(text, other) == 0) == (number == other_number), (text, other)
