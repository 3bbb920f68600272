"""How long a LOAD DATA into an empty table takes with its secondary indexes in place, and without them and with an
ALTER TABLE that adds them afterwards: on MariaDB and, if there is one, on MySQL.

The rows are in the order of the primary key, one transaction, and the same in every turn. The indexes are of random
values. The ways take turns on one server; the medians count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.document import machine
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql

COLUMNS = (
    "id BIGINT NOT NULL PRIMARY KEY, customer BIGINT NOT NULL, name VARCHAR(40) NOT NULL, "
    "amount DECIMAL(12,2) NOT NULL, at DATETIME NOT NULL, state TINYINT NOT NULL, note VARCHAR(80), "
    "qty INT NOT NULL, _cdc_version VARBINARY(84)"
)
INDEXES = ("INDEX by_customer (customer)", "INDEX by_name (name)", "INDEX by_qty (qty)")
LOG = {MySql: "innodb-redo-log-capacity", MariaDb: "innodb-log-file-size"}


def written(path: Path, rows: int) -> None:
    chance = np.random.default_rng(7)
    letters = chance.integers(97, 123, size=(rows, 14), dtype=np.uint8)
    table = pa.table(
        {
            "id": np.arange(1, rows + 1),
            "customer": chance.integers(1, 1 << 40, rows),
            "name": pa.array(letters.view("S14").ravel().astype(object), pa.binary()).cast(pa.string()),
            "amount": chance.integers(0, 10**8, rows),
            "at": chance.integers(1_600_000_000, 1_800_000_000, rows).astype("datetime64[s]"),
            "state": chance.integers(0, 5, rows),
            "note": pa.array(["some text of a note that is about forty"] * rows),
            "qty": chance.integers(0, 2**31 - 1, rows),
            "version": pa.array(["shop0123456789012345678901"] * rows),
        }
    )
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pyarrow.csv.write_csv(table, path, options)


def turn(server: MySql | MariaDb, path: Path, *, after: bool) -> tuple[float, float]:
    """Seconds of the load, and of the ALTER TABLE."""
    with server.connect(local_infile=True, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS bench")
        cursor.execute("CREATE DATABASE bench")
        parts = [COLUMNS] if after else [COLUMNS, *INDEXES]
        cursor.execute(f"CREATE TABLE bench.t ({', '.join(parts)})")
        began_s = time.perf_counter()
        cursor.execute(f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE bench.t")
        loaded_s = time.perf_counter()
        if after:
            cursor.execute(f"ALTER TABLE bench.t {', '.join(f'ADD {index}' for index in INDEXES)}")
        ended_s = time.perf_counter()
        cursor.execute("DROP DATABASE bench")
        cursor.execute("RESET BINARY LOGS AND GTIDS" if isinstance(server, MySql) else "RESET MASTER")
    return loaded_s - began_s, ended_s - loaded_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--server", choices=["mariadb", "mysql"], action="append", help="default: both")
    chosen = parser.parse_args()
    kinds: list[type[MariaDb] | type[MySql]] = [MariaDb, MySql] if MySql.available() is None else [MariaDb]
    if chosen.server:
        kinds = [kind for kind in kinds if kind.__name__.lower() in chosen.server]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.tsv"
        written(path, chosen.rows)
        for kind in kinds:
            load = os.getloadavg()[0]
            with kind.start(server_id=9, options={"innodb-buffer-pool-size": "1G", LOG[kind]: "1G"}) as server:
                turns = [
                    (sum(turn(server, path, after=False)), *turn(server, path, after=True)) for _ in range(chosen.turns)
                ]
                print(machine(server, load, f"{chosen.rows:,} rows", f"medians of {chosen.turns} turns"))
            there, loaded, built = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
            ratio = statistics.median(seconds[0] / (seconds[1] + seconds[2]) for seconds in turns)
            print(f"there: {there:.1f} s; after: {loaded:.1f} s + {built:.1f} s; {ratio:.2f}×")


if __name__ == "__main__":
    main()
