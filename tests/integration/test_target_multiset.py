"""Rows without a key on real servers: as many copies of each as the source has, whatever runs and dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.run_plan import WriteCounts
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.writing.multiset import write_copies
from tests.integration.test_target_session import with_globals
from tests.lab.databases import is_newest
from tests.lab.refusals import raises
from tests.lab.target_rows import Table, Winner, target_table

LOG = "CREATE TABLE {name} (word VARCHAR(20) COLLATE utf8mb4_general_ci, n INT, extra VARCHAR(9))"
COLUMNS = {"word": pa.string(), "n": pa.int32()}
Row = tuple[str | None, int | None]
WORDS = [None, "", "a", "A", "a ", "ä"]


@pytest.fixture
def table(server: Any) -> Iterator[Table]:
    with target_table(server, LOG, COLUMNS, ()) as made:
        yield made


class Died(Exception):
    """Of who is killed before the commit."""


def entries(batch: int, net: Counter[Row], source: str = "one") -> list[Winner]:
    return [
        Winner("u" if count > 0 else "d", {"word": row[0], "n": row[1]}, (batch, batch, copy, source))
        for row, count in net.items()
        for copy in range(abs(count))
    ]


def put(table: Table, rows: Sequence[Winner], upto: dict[str, int], *, dies: bool = False) -> WriteCounts:
    def transact(*arguments: Any, **options: Any) -> WriteCounts:
        counts = write_copies(*arguments, upto=upto, **options)
        if dies:
            raise Died
        return counts

    return table.write(rows, transact=transact)


def held(table: Table) -> Counter[Row]:
    return Counter(table.query(f"SELECT word, n FROM {table.facts.name}"))


def made(*rows: Row) -> Counter[Row]:
    return Counter(rows)


STEPS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([None, 0, 1]), st.integers(0, 99), st.booleans()),
    min_size=1,
    max_size=12,
)
"""Changes: a word, a number, which of the rows that are there it hits (or none), whether it ends a batch."""
RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=8)


@given(histories=st.fixed_dictionaries({"one": STEPS, "two": STEPS}), runs=RUNS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_runs_repeats_takeovers_and_deaths_end_in_as_many_copies_as_the_source_has(
    table: Table, histories: dict[str, list[Any]], runs: list[tuple[int, int, bool]]
) -> None:
    """A run takes the batches from one that follows what was committed, or an earlier one, to any later one."""
    for name in (table.facts.name, f"{table.facts.database}._lockstep_mark"):
        table.query(f"DELETE FROM {name}")
    batches: dict[str, list[Counter[Row]]] = {}
    for source, steps in histories.items():
        rows: list[Row] = []
        nets = batches[source] = [Counter()]
        for word, n, at, ends in steps:
            net = nets[-1]
            if rows and at % 3:
                gone = rows.pop(at % len(rows))
                net[gone] -= 1
            if at % 3 < 2:
                rows.append((word, n))
                net[word, n] += 1
            if ends:
                nets.append(Counter())
    reached = dict.fromkeys(batches, 0)
    for begin, length, dies in [*runs, (0, 99, False)]:
        taken, upto = [], {}
        for source, nets in batches.items():
            first = min(begin, reached[source])
            last = min(first + length, len(nets) - 1)
            taken += [entry for at in range(first, last + 1) for entry in entries(at + 1, nets[at], source)]
            upto[source] = last + 1
        if dies:
            with pytest.raises(Died):
                put(table, taken, upto, dies=True)
            continue
        counts = put(table, taken, upto)
        reached = {source: max(reached[source], upto[source]) for source in batches}
        assert counts.written + counts.stale == len(taken)
        assert counts.absent == 0
        expected: Counter[Row] = Counter()
        for source, nets in batches.items():
            for net in nets[: reached[source]]:
                expected.update(net)
        assert held(table) == +expected
    assert put(table, taken, upto).written == 0


def test_copies_that_stay_keep_what_only_the_target_has(table: Table) -> None:
    put(table, entries(1, Counter({("a", 1): 3, ("b", 1): 1})), {"one": 1})
    table.query(f"UPDATE {table.facts.name} SET extra = 'kept'")
    counts = put(table, entries(2, Counter({("a", 1): -1, ("b", 1): -1, ("c", 1): 1})), {"one": 2})
    assert (counts.written, counts.stale, counts.absent) == (3, 0, 0)
    found = table.query(f"SELECT word, n, extra FROM {table.facts.name} ORDER BY word")
    assert found == [("a", 1, "kept"), ("a", 1, "kept"), ("c", 1, None)]


def test_two_runs_at_once_apply_a_batch_once_between_them(table: Table) -> None:
    first, second = entries(1, Counter({("a", 1): 2})), entries(2, Counter({("a", 1): -1, ("b", 1): 3}))
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(put, table, rows, upto) for rows, upto in (
            (first, {"one": 1}), ([*first, *second], {"one": 2}), ([*first, *second], {"one": 2}),
        )]  # fmt: skip
    assert sum(run.result().written for run in runs) == len(first) + len(second)
    assert held(table) == Counter({("a", 1): 1, ("b", 1): 3})


def test_who_deletes_what_is_not_there_is_counted_and_nothing_else_goes(table: Table) -> None:
    put(table, entries(1, Counter({("a", 1): 1})), {"one": 1})
    counts = put(table, entries(2, Counter({("a", 1): -3, ("A", 1): -1, ("b", 1): 1})), {"one": 2})
    assert (counts.written, counts.stale, counts.absent) == (2, 0, 3)
    assert held(table) == made(("b", 1))


def test_a_truncate_empties_the_table_once(table: Table) -> None:
    put(table, entries(1, Counter({("a", 1): 2})), {"one": 1})
    behind = [
        Winner("t", {}, (2, 2, 0, "one")),
        *entries(2, Counter({("b", 1): 1})),
        *entries(3, Counter({("c", 1): 1})),
    ]
    assert put(table, behind[:2], {"one": 2}).written == 2
    assert held(table) == made(("b", 1))
    counts = put(table, behind, {"one": 3})
    assert (counts.written, counts.stale) == (1, 2)
    assert held(table) == made(("b", 1), ("c", 1))


def test_the_table_is_not_altered_and_the_ledger_stands_in_the_transaction(table: Table) -> None:
    shown = table.query(f"SHOW CREATE TABLE {table.facts.name}")
    ledger = f"SELECT written, stale, absent FROM {table.facts.database}._lockstep_ledger"
    rows = entries(1, Counter({("a", 1): 1}))
    with pytest.raises(Died):
        put(table, rows, {"one": 1}, dies=True)
    assert (table.query(ledger), held(table)) == ([], Counter())
    put(table, rows, {"one": 1})
    assert table.query(ledger) == [(1, 0, 0)]
    assert table.query(f"SHOW CREATE TABLE {table.facts.name}") == shown


def test_a_trigger_that_changes_rows_is_found_out_and_nothing_is_written(mariadb_target: Any) -> None:
    with target_table(mariadb_target, LOG, COLUMNS, ()) as table:
        table.query(f"CREATE TRIGGER {table.facts.database}.bend BEFORE INSERT ON {table.facts.name} FOR EACH ROW "
                    "SET NEW.n = IF(NEW.word = 'bent', 9, NEW.n)")  # fmt: skip
        triggered = partial(put, keyless(table, "t", COLUMNS))
        triggered(entries(1, Counter({("a", 1): 2})), {"one": 1})
        with raises(DataAtRisk, "target.row_error"):
            triggered(entries(2, Counter({("bent", 1): 1, ("a", 1): -1})), {"one": 2})
        assert held(table) == made(("a", 1), ("a", 1))


def test_a_table_without_a_key_that_has_a_trigger_before_its_rows_is_written(mariadb_target: Any) -> None:
    """MariaDB refuses INSERT (...) SELECT of several rows into such a table."""
    definition = "CREATE TABLE {name} (word VARCHAR(9) NOT NULL CHECK (word <> 'bad'), n INT NOT NULL)"
    with target_table(mariadb_target, definition, COLUMNS, ()) as table:
        table.query(f"CREATE TRIGGER {table.facts.database}.before BEFORE INSERT ON {table.facts.name} FOR EACH ROW "
                    "SET @seen = NEW.n")  # fmt: skip
        triggered = partial(put, keyless(table, "t", COLUMNS))
        triggered(entries(1, Counter({("a", 1): 3, ("b", 2): 2, ("c", 3): 1})), {"one": 1})
        assert held(table) == made(*[("a", 1)] * 3, *[("b", 2)] * 2, ("c", 3))
        triggered(entries(2, Counter({("a", 1): -1, ("d", 4): 2, ("b", 2): -2})), {"one": 2})
        assert held(table) == made(*[("a", 1)] * 2, ("c", 3), *[("d", 4)] * 2)
        with raises(DataAtRisk, "target.row_error"):
            triggered(entries(3, Counter({("e", 5): 2, ("bad", 1): 1, ("f", 6): 2})), {"one": 3})
        assert held(table) == made(*[("a", 1)] * 2, ("c", 3), *[("d", 4)] * 2)


def keyless(table: Table, name: str, columns: Mapping[str, pa.DataType]) -> Table:
    """A table of the same database, as it is now."""
    facts = replace(table_facts(table.connection, table.facts.database, [name])[name], keyless=True)
    return Table(table.server, table.connection, facts, columns, ())


def test_a_row_that_the_table_does_not_take_is_an_error_of_its_own(table: Table) -> None:
    table.query(f"ALTER TABLE {table.facts.name} MODIFY n INT NOT NULL")
    with raises(DataAtRisk, "target.row_error"):
        put(table, entries(1, Counter({("a", None): 1})), {"one": 1})
    assert held(table) == Counter()


KINDS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "d": ("DOUBLE", pa.float64(), [0.0, -0.0, 0.1, 0.1 + 2**-56, 1e300, None]),
    "f": ("FLOAT", pa.float32(), [0.1, 0.25, 16777217.0, -0.0, 0.0]),
    "m": ("DECIMAL(9,3)", pa.decimal128(9, 3), [None]),
    "b": ("BIT(9)", pa.uint64(), [0, 1, 257, None]),
    "e": ("ENUM('a','ß','') COLLATE utf8mb4_general_ci", pa.string(), ["a", "ß", "", None]),
    "c": ("CHAR(5) CHARACTER SET latin1", pa.string(), ["a", "A", "ä", "", None]),
    "v": ("VARBINARY(9)", pa.binary(), [b"", b"\0", b"\0\0", b",", None]),
    "j": ("JSON", pa.string(), ["1", '"1"', "null", "[1, 2]", None]),
    "t": ("DATETIME(3)", pa.string(), ["0000-00-00 00:00:00.000", "2024-02-31 00:00:00.001", None]),
    "y": ("YEAR", pa.int16(), [0, 1970, None]),
    "p": ("POINT", pa.binary(), [bytes(4) + bytes.fromhex("0101000000") + bytes(16), None]),
    "x": ("LONGTEXT CHARACTER SET utf8mb4", pa.string(), ["x" * 70_000, "x" * 69_999 + "X", None]),
}


def test_rows_that_differ_in_one_value_of_any_type_are_told_apart(table: Table, server: Any) -> None:
    """Each value alone in its row, twice; then one copy of each goes: one of each must be left, the same bytes."""
    columns = ", ".join(f"{column} {declared}" for column, (declared, _, _) in KINDS.items())
    table.query("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    table.query(f"CREATE TABLE {table.facts.database}.kinds ({columns})")
    kinds = keyless(table, "kinds", {column: kind for column, (_, kind, _) in KINDS.items()})
    rows = [{column: value} for column, (_, _, values) in KINDS.items() for value in values if value is not None]
    for batch, ops in ((1, "uu"), (2, "d")):
        loaded = [Winner(op, row, (batch, batch, copy, "one")) for row in [*rows, {}] for copy, op in enumerate(ops)]
        counts = put(kinds, loaded, {"one": batch})
        assert (counts.written, counts.absent) == (len(loaded), 0)
    found = kinds.query(f"SELECT CAST(d AS CHAR) FROM {kinds.facts.name} WHERE d IS NOT NULL")
    zeros = ["0", "0"] if is_newest(server) else ["-0", "0"]
    assert sorted(value for (value,) in found) == [*zeros, "0.1", "0.10000000000000002", "1e300"]
    assert kinds.query(f"SELECT COUNT(*) FROM {kinds.facts.name}") == [(len(rows) + 1,)]


def test_documents_that_are_longer_than_what_the_server_prints_are_never_taken_for_each_other(server: Any) -> None:
    """MySQL makes '' of their texts. In a column, their numbers take less."""
    documents = [str([number] * 150_000) for number in (1_000_000_001, 1_000_000_002)]
    with target_table(server, "CREATE TABLE {name} (doc JSON)", {"doc": pa.string()}, ()) as table:

        def apply(batch: int, *ops: str) -> list[int]:
            """The numbers of the documents that are there after these copies of each have come or gone."""
            loaded = [
                Winner(op, {"doc": document}, (batch, batch, copy, "one"))
                for document, of_one in zip(documents, ops, strict=True)
                for copy, op in enumerate(of_one)
            ]
            put(table, loaded, {"one": batch})
            return sorted(
                int(at) for (at,) in table.query(f"SELECT JSON_EXTRACT(doc, '$[0]') % 10 FROM {table.facts.name}")
            )

        assert apply(1, "uuu", "u") == [1, 1, 1, 2]
        with with_globals(server, {"max_allowed_packet": str(1 << 20)}):
            if server.mariadb:
                assert apply(2, "d", "d") == [1, 1]
            else:
                with raises(Refused, "target.limit"):
                    apply(2, "d", "d")
        assert apply(2, "d", "d") == [1, 1]
