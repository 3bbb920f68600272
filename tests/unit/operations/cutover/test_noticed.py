"""What an application notices when a table takes the place of another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_core.model.schema import parse_column_type
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.operations.cutover.noticed import noticed
from cdc_core.targets.tables.table_definition import (
    LITERAL,
    ColumnDefinition,
    IndexDefinition,
    IndexPart,
    TableDefinition,
)
from cdc_core.targets.tables.table_differences import Existing


def column(name: str, declared: str = "int", collation: str = "", **more: object) -> ColumnDefinition:
    kind = parse_column_type(declared, charset=collation.partition("_")[0], collation=collation)
    return ColumnDefinition(name, kind, **more)


def index(name: str, *columns: str, unique: bool = False, kind: str = "BTREE") -> IndexDefinition:
    return IndexDefinition(name, unique, tuple(IndexPart(part) for part in columns), kind)


PRIMARY = index("PRIMARY", "id", unique=True)
COLUMNS = (
    column("id", counted=True),
    column("name", "varchar(9)", "utf8mb4_general_ci", default=LITERAL),
    column("e", "enum('a','b')", "utf8mb4_general_ci"),
)
OLD = TableDefinition("shop", "t", COLUMNS, (PRIMARY, index("by_name", "name")), triggers=("one", "two"))
ID, NAME, E = COLUMNS


def found(new: TableDefinition, old: TableDefinition = OLD, **literals: str) -> list[tuple[str, bool]]:
    there = noticed(Existing(old, {"name": "x"}), Existing(new, literals))
    return [(difference.what, difference.stops) for difference in there]


def test_a_table_that_was_made_like_the_former_one_is_not_noticed() -> None:
    version = column(VERSION_COLUMN, "varbinary(84)", invisible=True)
    gate = "_lockstep_gate_1_t_insert"
    assert found(replace(OLD, columns=(*COLUMNS, version), triggers=(*OLD.triggers, gate)), name="x") == []
    assert found(OLD, replace(OLD, columns=(*COLUMNS, version))) == []  # back
    wider = column("e", "enum('a','b','c')", "utf8mb4_general_ci")
    assert found(replace(OLD, columns=(ID, NAME, wider), indexes=(PRIMARY, index("n", "name", "e")))) == []


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (replace(OLD, columns=(ID, E, NAME)), "its columns are in another order: e is where name was"),
        (
            replace(OLD, columns=(ID, NAME, column("e", "enum('b','a')", "utf8mb4_general_ci"))),
            "e has its labels in another order",
        ),
    ],
    ids=["columns", "labels"],
)
def test_what_gives_the_same_statement_another_meaning_without_an_error_stops_a_cutover(
    new: TableDefinition, what: str
) -> None:
    assert found(new) == [(what, True)]


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (replace(OLD, columns=(ID, NAME)), "it shows other columns: e"),
        (replace(OLD, columns=(*COLUMNS, column("more"))), "it shows other columns: more"),
        (replace(OLD, columns=(ID, NAME, replace(E, invisible=True))), "it shows other columns: e"),
        (
            replace(OLD, columns=(ID, NAME, column("e", "enum('a')", "utf8mb4_general_ci"))),
            "e lacks the labels b",
        ),
        (
            replace(OLD, columns=(ID, column("name", "varchar(9)", "utf8mb4_bin", default=LITERAL), E)),
            "the collation of name is utf8mb4_bin, and was utf8mb4_general_ci",
        ),
        (replace(OLD, columns=(ID, replace(NAME, default=""), E)), "name has no default"),
        (replace(OLD, columns=(replace(ID, counted=False), NAME, E)), "id is not AUTO_INCREMENT"),
        (replace(OLD, indexes=(PRIMARY,)), "it has no index like by_name"),
        (replace(OLD, indexes=(PRIMARY, index("by_name", "name", kind="FULLTEXT"))), "it has no index like by_name"),
        (
            replace(OLD, indexes=(*OLD.indexes, index("once", "name", unique=True))),
            "it has the unique key once",
        ),
        (replace(OLD, triggers=("one",)), "it has 1 of the triggers one, two"),
    ],
)
def test_what_an_application_may_do_without_is_told(new: TableDefinition, what: str) -> None:
    assert found(new) == [(what, False)]


def test_another_default_is_told() -> None:
    assert found(OLD, name="y") == [("name has the default 'y', and had 'x'", False)]


def test_collations_of_one_name_are_others_at_the_other_kind_of_server() -> None:
    sorted_so = replace(OLD, columns=(ID, column("name", "varchar(9)", "utf8mb4_0900_ai_ci", default=LITERAL), E))
    there = "utf8mb4_0900_ai_ci of MariaDB"
    assert found(replace(sorted_so, mariadb=True), sorted_so) == [
        (f"the collation of name is {there}, and was utf8mb4_0900_ai_ci", False)
    ]
