"""What the benchmarks write to a source: seeded workloads, each in a database and in binlog files of its own.

Values are functions of the row's number, so that every run of a size writes the same rows. Statements run with as few
round trips as possible: what is measured is reading the log, not writing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from examples.sandbox.sql_server import SqlServer

THREADS = 4
_DIGITS = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
_CHUNK = 10_000
"""Rows of one bulk transaction."""


@dataclass(frozen=True)
class Workload:
    """name: of the workload and its database. tables: that it writes to. rows: changes at full size.

    about: what it is, for the reader of the table. write: writes `rows` changes. quick: part of `rows` for --quick.
    """

    name: str
    about: str
    rows: int
    tables: tuple[str, ...]
    write: Callable[[SqlServer, str, int], None]
    quick: float = 0.1


@dataclass(frozen=True)
class Stretch:
    """Where a workload is in the log, how large that is, and how many changes it has."""

    database: str
    tables: tuple[str, ...]
    file: str
    end_file: str
    end_offset: int
    log_bytes: int
    changes: int


def written(server: SqlServer, workload: Workload, rows: int) -> Stretch:
    """Writes the workload after a rotation of the log; the definitions lie in the file before."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {workload.name}")
    workload.write(server, workload.name, rows)
    files = _log(server)
    with server.connect(workload.name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT file FROM meta_start")
        [[start]] = cursor.fetchall()
    read = sum(size for name, size in files if name >= start)
    return Stretch(workload.name, workload.tables, start, *files[-1], read, rows)


def _log(server: SqlServer) -> list[tuple[str, int]]:
    """Its files, with their sizes."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return [(str(name), int(size)) for name, size, *_ in cursor.fetchall()]


def _begin(server: SqlServer, database: str, *definitions: str) -> None:
    """Makes the tables, and a table of numbers that the log knows nothing of; then a new binlog file begins."""
    _execute(server, database, *definitions)
    _execute(server, database, "FLUSH BINARY LOGS")
    file, _ = _log(server)[-1]
    _execute(
        server,
        database,
        "SET sql_log_bin = 0",
        "CREATE TABLE n (n INT PRIMARY KEY)",
        "INSERT INTO n SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d "
        f"FROM {_DIGITS} a, {_DIGITS} b, {_DIGITS} c, {_DIGITS} e",
        "CREATE TABLE meta_start (file VARCHAR(99))",
        f"INSERT INTO meta_start VALUES ('{file}')",
    )


def _execute(server: SqlServer, database: str, *statements: str) -> None:
    with server.connect(database, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _looped(server: SqlServer, database: str, body: str, count: int) -> None:
    """`body` for each number `i` of 0..count-1, every statement a transaction unless it begins one: in the server, by
    several sessions at once."""
    _execute(
        server,
        database,
        "SET sql_log_bin = 0",
        "CREATE PROCEDURE write_all(i INT, stop INT) BEGIN DECLARE v BIGINT; WHILE i < stop DO "
        f"SET v = CRC32(i); {body} SET i = i + 1; END WHILE; END",
    )
    step = -(-count // THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [(low, min(low + step, count)) for low in range(0, count, step)]
        list(pool.map(lambda part: _execute(server, database, f"CALL write_all({part[0]}, {part[1]})"), parts))


def _chunks(rows: int, size: int = _CHUNK) -> Iterator[tuple[int, int]]:
    for low in range(0, rows, size):
        yield low, min(size, rows - low)


def _one_row(server: SqlServer, database: str, rows: int) -> None:
    _begin(server, database, "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(40), u DATETIME(3))")
    body = (
        "INSERT INTO t VALUES (i, v % 100000, CONCAT('text ', v), "
        "'2026-01-01' + INTERVAL v % 30000000 * 1000 MICROSECOND);"
    )
    _looped(server, database, body, rows)


def _bulk(server: SqlServer, database: str, rows: int) -> None:
    """Of each 111 changes 100 are inserts, 10 updates and one a delete."""
    _begin(
        server,
        database,
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT UNSIGNED, amount DECIMAL(14,2), "
        "status ENUM('new','paid','sent','done'), note VARCHAR(60), created DATETIME(3), changed TIMESTAMP(6) NULL, "
        "score DOUBLE)",
    )
    inserts = rows * 100 // 111
    deletes = rows // 111
    updates = rows - inserts - deletes
    for low, count in _chunks(inserts):
        _execute(
            server,
            database,
            f"INSERT INTO orders SELECT {low} + n, CRC32({low} + n) % 100000, CRC32({low} + n) % 10000000 / 100, "
            f"1 + n % 4, CONCAT('note ', LEFT(SHA2({low} + n, 256), 32)), '2026-01-01' + INTERVAL {low} + n SECOND, "
            f"'2026-01-01' + INTERVAL CRC32({low} + n) MICROSECOND, CRC32(n) / 1000 "
            f"FROM n WHERE n < {count} ORDER BY n",
        )
    for low, count in _chunks(updates):
        where = f"id >= {low} AND id < {low + count}"
        _execute(server, database, f"UPDATE orders SET amount = amount + 1, status = 'done' WHERE {where}")
    for low, count in _chunks(deletes):
        first = inserts - deletes + low
        _execute(server, database, f"DELETE FROM orders WHERE id >= {first} AND id < {first + count}")


def _one_transaction(server: SqlServer, database: str, rows: int) -> None:
    _begin(server, database, "CREATE TABLE events (id BIGINT PRIMARY KEY, a INT, b VARCHAR(20), u DATETIME)")
    k = f"({_CHUNK} * c.n + n.n)"
    _execute(
        server,
        database,
        f"INSERT INTO events SELECT {k}, CRC32({k}) % 100000, CONCAT('text ', n.n), '2026-01-01' + INTERVAL {k} SECOND "
        f"FROM n c, n WHERE c.n <= {rows // _CHUNK} AND {k} < {rows} ORDER BY c.n, n.n",
    )


def _wide(server: SqlServer, database: str, rows: int) -> None:
    kinds = ("INT", "BIGINT", "VARCHAR(24)", "DECIMAL(10,2)", "DATETIME")
    columns = ", ".join(f"c{i} {kinds[i % 5]}" for i in range(99))
    _begin(server, database, f"CREATE TABLE wide (id INT PRIMARY KEY, {columns})")
    for low, count in _chunks(rows):
        k = f"({low} + n)"
        forms = (f"{k} * %d", f"{k} * 1000003 * %d", f"CONCAT('w', {k} * %d)", f"{k} %% 1000 + %d / 100")
        values = ", ".join(
            f"'2026-01-01' + INTERVAL {k} + {i} SECOND" if i % 5 == 4 else forms[i % 5] % (i + 1) for i in range(99)
        )
        _execute(server, database, f"INSERT INTO wide SELECT {k}, {values} FROM n WHERE n < {count} ORDER BY n")


SIXTEEN = tuple(f"t{i:02d}" for i in range(16))


def _sixteen(server: SqlServer, database: str, rows: int) -> None:
    """Transactions of four rows, each in another of sixteen tables."""
    shape = "(id BIGINT PRIMARY KEY, a INT, b VARCHAR(40), c DECIMAL(10,2), d DATETIME)"
    _begin(server, database, *(f"CREATE TABLE {name} {shape}" for name in SIXTEEN))
    cases = ""
    for first in range(4):
        values = "(i, v % 1000, CONCAT('row ', v), v % 100000 / 100, '2026-01-01' + INTERVAL i SECOND)"
        inserts = " ".join(f"INSERT INTO {SIXTEEN[first * 4 + k]} VALUES {values};" for k in range(4))
        cases += f" WHEN {first} THEN BEGIN {inserts} END;"
    _looped(server, database, f"START TRANSACTION; CASE i % 4 {cases} END CASE; COMMIT;", rows // 4)


def _documents(server: SqlServer, database: str, rows: int) -> None:
    _begin(server, database, "CREATE TABLE docs (id INT PRIMARY KEY, body MEDIUMTEXT, doc JSON)")
    for low, count in _chunks(rows, 100):
        k = f"({low} + n)"
        body = f"REPEAT(CONCAT(LEFT(SHA2({k}, 256), 32), ' lorem ipsum dolor '), 40 + {k} % 80)"
        doc = (
            f'CONCAT(\'{{"id": \', {k}, \', "name": "\', LEFT(SHA2({k}, 256), 32), \'", "price": \', {k} / 8, '
            f'\', "tags": ["a", "b", \', {k} % 9, \'], "nested": {{"x": true, "text": "\', '
            f"REPEAT(LEFT(SHA2({k}, 256), 32), 8), '\"}}}}')"
        )
        _execute(server, database, f"INSERT INTO docs SELECT {k}, {body}, {doc} FROM n WHERE n < {count} ORDER BY n")


WORKLOADS = (
    Workload("one_row", "one-row transactions, 4 columns", 400_000, ("t",), _one_row),
    Workload("bulk", "bulk: 100 inserts to 10 updates to 1 delete, 8 columns of mixed types, 10,000 rows a transaction",
             1_110_000, ("orders",), _bulk),
    Workload("one_transaction", "one transaction, 4 columns", 3_000_000, ("events",), _one_transaction),
    Workload("wide", "100 columns, 10,000 rows a transaction", 50_000, ("wide",), _wide),
    Workload("sixteen", "transactions of four rows in four of sixteen tables", 200_000, SIXTEEN, _sixteen),
    Workload("documents", "texts of 2 to 6 KB and JSON of 500 bytes, 100 rows a transaction", 30_000, ("docs",),
             _documents),
)  # fmt: skip
