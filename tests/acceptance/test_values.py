"""Values that a target might change, through the whole pipeline: generated columns, JSON of DECIMALs, large FLOATs."""

from __future__ import annotations

from typing import Any

import pytest

TABLE = (
    "CREATE TABLE {name} (id INT PRIMARY KEY, a INT, g INT {stored}, v INT {virtual}, own INT AS (a + 3) STORED, "
    "f FLOAT, d DOUBLE, j JSON, ts TIMESTAMP NOT NULL DEFAULT 0, e ENUM('a', 'b\\\\\\\\c'))"
)
ROW = (
    "INSERT INTO {name} (id, a, f, d, j, ts, e) VALUES ({id}, 1, 3.402823466e38, 1.7976931348623157e308, JSON_OBJECT("
    "'d', CAST('12345678901234567890.123456789' AS DECIMAL(40,9)), 'n', CAST(-1.50 AS DECIMAL(5,2))), 0, 'b\\\\\\\\c')"
)
LABELS = "labels (e ENUM('', '\\0', 'x') COLLATE utf8mb4_bin PRIMARY KEY, n INT)"


def _labels(cursor: Any) -> list[tuple[Any, ...]]:
    cursor.execute("SELECT e + 0, CAST(e AS CHAR), n FROM bend_target.labels ORDER BY e + 0")
    return list(cursor.fetchall())


@pytest.mark.spark
def test_generated_columns_json_and_extremes_end_at_the_target_as_at_the_source(mysql9: Any, lockstep: Any) -> None:
    lockstep.environ |= {"SHOP": mysql9.url, "COPY": mysql9.url}
    with mysql9.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bend_source")
        cursor.execute("CREATE DATABASE bend_target")
        cursor.execute("SET sql_mode = ''")
        made = TABLE.format(name="bend_source.t", stored="AS (a + 1) STORED", virtual="AS (a + 2) VIRTUAL")
        cursor.execute(made)
        cursor.execute(TABLE.format(name="bend_target.t", stored="", virtual=""))
        for name in ("bend_source", "bend_target"):
            cursor.execute(f"CREATE TABLE {name}.{LABELS}")
        lockstep("init", "bend", "--source", "env:SHOP", "--include", r"bend_source\..*", "-o", "bend.yaml")
        file = lockstep.directory / "bend.yaml"
        targets = "targets: [{name: copy, connections: [env:COPY], tables: {'*': {database: bend_target}}}]"
        file.write_text(f"{file.read_text()}\n{targets}\n")
        for id, image in enumerate(("FULL", "MINIMAL", "NOBLOB")):
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            cursor.execute(ROW.format(name="bend_source.t", id=id))
            cursor.execute(f"UPDATE bend_source.t SET a = 5 WHERE id = {id}")
        cursor.execute("INSERT INTO bend_source.labels VALUES ('', 2), ('\\0', 3), ('x', 4)")
        cursor.execute("DELETE FROM bend_source.labels WHERE e = 'x'")
        assert lockstep("check", "bend.yaml").document["ok"] is True
        ledgers = lockstep("run", "bend.yaml").document["ledgers"]
        assert [ledger["problems"] for ledger in ledgers] == [[], []]
        columns = "id, a, g, v, own, CAST(f AS DOUBLE), d, CAST(j AS CHAR), CAST(ts AS CHAR), e"
        rows = []
        for name in ("bend_source", "bend_target"):
            cursor.execute(f"SELECT {columns} FROM {name}.t ORDER BY id")
            rows.append(cursor.fetchall())
        assert len(rows[0]) == 3
        assert rows[1] == rows[0]
        labels = _labels(cursor)
        assert labels == [(1, "", 2), (2, "\0", 3)]
        # The NUL becomes the label '', whose row becomes the NUL: two changes of a key.
        cursor.execute("UPDATE bend_source.labels SET e = 'x' WHERE n = 2")
        cursor.execute("UPDATE bend_source.labels SET e = '' WHERE n = 3")
        cursor.execute("UPDATE bend_source.labels SET e = '\\0' WHERE n = 2")
        lockstep("run", "bend.yaml")
        assert _labels(cursor) == [(1, "", 3), (2, "\0", 2)]
        cursor.execute("INSERT INTO bend_source.labels VALUES ('zzz', 1)")  # the error value
        assert lockstep("run", "bend.yaml", code=4).error["code"] == "target.row_error"


@pytest.mark.spark
def test_a_virtual_column_of_mariadb_is_copied_into_a_plain_column(mariadb: Any, mysql9: Any, lockstep: Any) -> None:
    lockstep.environ |= {"SHOP": mariadb.url, "COPY": mysql9.url}
    with (
        mariadb.connect(autocommit=True) as connection,
        mysql9.connect(autocommit=True) as target,
        connection.cursor() as cursor,
        target.cursor() as there,
    ):

        def equal() -> bool:
            cursor.execute("SELECT * FROM computed.t ORDER BY id")
            there.execute("SELECT id, a, v, s FROM computed.t ORDER BY id")
            return list(cursor.fetchall()) == list(there.fetchall())

        cursor.execute("CREATE DATABASE computed")
        cursor.execute(
            "CREATE TABLE computed.t (id INT PRIMARY KEY, a INT, v INT AS (a + 2) VIRTUAL, s INT AS (a + 3) STORED)"
        )
        cursor.execute("INSERT INTO computed.t (id, a) VALUES (1, 1), (2, 2), (3, 3)")
        there.execute("CREATE DATABASE computed")
        # One that Lockstep makes lacks v: other row images than FULL do.
        there.execute("CREATE TABLE computed.t (id INT PRIMARY KEY, a INT, v INT, s INT)")
        lockstep("init", "computed", "--source", "env:SHOP", "--include", r"computed\..*", "--target", "env:COPY")
        lockstep("run", "computed.yaml")
        assert equal()
        cursor.execute("UPDATE computed.t SET a = 7 WHERE id = 2")
        cursor.execute("DELETE FROM computed.t WHERE id = 3")
        cursor.execute("INSERT INTO computed.t (id, a) VALUES (4, 4)")
        lockstep("run", "computed.yaml")
        assert equal()
        lockstep("snapshot", "computed.yaml", "computed.t")
        lockstep("run", "computed.yaml")
        assert equal()
