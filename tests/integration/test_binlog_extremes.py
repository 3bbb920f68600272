"""Tables at the servers' own limits, of columns and of names."""

from __future__ import annotations

from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from examples.sandbox.sql_server import SqlServer
from tests.unit.binlog.reading import decoded, events_since, known_schema, mark, row_groups, rows_of

ODD_NAMES = ("a.b", 'quo"te', "tick`", "two words", "emojié", "sla/sh", "back\\slash", "percent%s", "UPPER", "upper_")


def test_a_table_of_as_many_columns_as_the_server_takes(any_server: SqlServer, database: str) -> None:
    count = 2500 if any_server.mariadb else 4096
    columns = ", ".join(f"c{n} TINYINT" for n in range(count))
    # In most tables the server stops earlier: InnoDB at 1017 columns.
    any_server.run(f"CREATE TABLE {database}.t ({columns}) ENGINE=MyISAM")
    since = mark(any_server)
    values = [None if n % 5 == 0 else n % 127 for n in range(count)]
    written = ", ".join("NULL" if value is None else str(value) for value in values)
    any_server.run(f"INSERT INTO {database}.t VALUES ({written})", f"UPDATE {database}.t SET c{count - 1} = 1, c0 = 2")
    schema, rows = decoded(
        events_since(any_server, since), known_schema(any_server, database, "t"), mariadb=any_server.mariadb
    )  # fmt: skip
    assert len(schema.columns) == count
    assert [list(row.values()) for row in rows_of(schema, rows.after)] == [values, [2, *values[1:-1], 1]]


def test_names_of_tables_and_columns_are_kept_as_they_are(any_server: SqlServer, database: str) -> None:
    since = mark(any_server)
    for name in ODD_NAMES:
        quoted = "`" + name.replace("`", "``") + "`"
        any_server.run(
            f"CREATE TABLE {database}.{quoted} (id INT PRIMARY KEY, {quoted} INT)",
            f"INSERT INTO {database}.{quoted} VALUES (1, 7)",
        )
    logged = row_groups(events_since(any_server, since), mariadb=any_server.mariadb)
    assert [table.table for table, _ in logged] == list(ODD_NAMES)
    for table, events in logged:
        schema = schema_of(table, known_schema(any_server, database, table.table), mariadb=any_server.mariadb)
        rows = decode_rows(schema, table, RowImages.from_events(events))
        assert rows_of(schema, rows.after) == [{"id": 1, table.table: 7}]
