"""python -m tests.released.make: writes what this version stages, records and applies to a file beside this one.

A release does it once. What is in VERSION.tar.xz:

    shop.yaml      the pipeline; ROOT stands for the folder that the archive is unpacked into
    stage/         batches, of which the target has all but the last
    meta.db
    target.sql     the target's databases, with Lockstep's own tables
    expected.json  rows by table: of the source at its end; and what `lockstep stage sql` says as of `position`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from examples.sandbox.mariadb import MariaDb

FOLDER = Path(__file__).parent
DATABASE, TABLES = "shop", ("customers", "orders", "log")
DEFINITIONS = (
    """CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(40) CHARACTER SET utf8mb4, born DATE,
       score DECIMAL(12, 3), seen TIMESTAMP(6) NULL, tags SET('a', 'b'), raw VARBINARY(8), note JSON, KEY (name))""",
    """CREATE TABLE orders (shop SMALLINT UNSIGNED, number BIGINT UNSIGNED, total DECIMAL(10, 2),
       PRIMARY KEY (shop, number))""",
    "CREATE TABLE log (at DATETIME(3), text VARCHAR(99))",
)
BEFORE = (
    """INSERT INTO customers
       VALUES (1, 'Zoë', '1990-02-03', 1.5, '2026-01-02 03:04:05.678901', 'a,b', x'00FF', '{"k": 1}')""",
)
FIRST = (
    "INSERT INTO customers (id, name) VALUES (2, 'Ada'), (3, 'Ümit')",
    "INSERT INTO orders VALUES (1, 18446744073709551615, 9.99), (1, 2, -0.01), (2, 1, NULL)",
    "INSERT INTO log VALUES ('2026-01-01 00:00:00.001', 'twice'), ('2026-01-01 00:00:00.001', 'twice')",
    "UPDATE orders SET number = 3 WHERE number = 2",
    "DELETE FROM customers WHERE id = 3",
)
SECOND = (
    "ALTER TABLE customers ADD COLUMN city VARCHAR(20) DEFAULT 'Bern', CHANGE born birthday DATE",
    "UPDATE customers SET city = 'Köln', score = score + 1",
    "DELETE FROM orders WHERE shop = 2",
    "INSERT INTO customers (id, name, city) VALUES (4, '', NULL)",
)
LAST = (
    "UPDATE customers SET note = '[]' WHERE id = 1",
    "INSERT INTO orders VALUES (3, 7, 70)",
    "DELETE FROM log LIMIT 1",
)


def main() -> int:
    """The archive's path is printed."""
    archive = FOLDER / f"{version('lockstep-cdc')}.tar.xz"
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-released-") as name,
        MariaDb.start() as source,
        MariaDb.start() as target,
    ):
        _write(Path(name), source, target)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for path in sorted(Path(name).rglob("*")):
                packed.add(path, path.relative_to(name), recursive=False)
    print(archive)
    return 0


def _write(root: Path, source: MariaDb, target: MariaDb) -> None:
    lockstep = partial(command, root, SHOP=source.url, COPY=target.url)
    source.run(f"CREATE DATABASE {DATABASE}")
    source.run(*DEFINITIONS, *BEFORE, database=DATABASE)
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{DATABASE}\..*", "--target", "env:COPY",
             "--stage", (root / "stage").as_uri(), "--meta", f"sqlite:///{root}/meta.db")  # fmt: skip
    target.run(f"CREATE DATABASE {DATABASE}")
    lockstep("target", "create", "shop.yaml")
    lockstep("run", "shop.yaml")
    source.run(*FIRST, database=DATABASE)
    at = lockstep("extract", "shop.yaml")["sources"][0]["position"]
    position = f"{at['file']}:{at['offset']}"
    then = state(lockstep, position)
    lockstep("run", "shop.yaml")
    source.run(*SECOND, database=DATABASE)
    lockstep("run", "shop.yaml")
    source.run(*LAST, database=DATABASE)
    lockstep("extract", "shop.yaml")
    dump = [*MariaDb.client("mariadb-dump"), "--no-defaults", *login(target), "--skip-dump-date", "--hex-blob"]
    done = subprocess.run([*dump, "--databases", DATABASE], check=True, capture_output=True)
    (root / "target.sql").write_bytes(done.stdout)
    expected = {"now": rows(source), "position": position, "then": then}
    (root / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))
    file = root / "shop.yaml"
    file.write_text(file.read_text().replace(str(root), "ROOT"))


def command(root: Path, *arguments: str, **environ: str) -> Any:
    """The document of a command in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "cdc_core.cli", *arguments, "--json"],
        cwd=root, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def login(server: MariaDb) -> tuple[str, ...]:
    """Options of MariaDB's own programs."""
    return (
        f"--host={server.host}",
        f"--port={server.port}",
        "--user=root",
        f"--password={server.password}",
        "--skip-ssl",
    )


def state(lockstep: Callable[..., Any], position: str) -> dict[str, Any]:
    """By table: what the stage has as of a position."""
    return {
        table: lockstep(
            "stage", "sql", "shop.yaml", f'SELECT * FROM "{DATABASE}.{table}" ORDER BY ALL', "--as-of", position
        )
        for table in TABLES
    }


def rows(server: MariaDb) -> dict[str, list[list[str | None]]]:
    """By table: each value as the server prints it, in hexadecimal; rows in no order."""
    found = {}
    for table in TABLES:
        columns = [name for name, *_ in server.run(f"SHOW COLUMNS FROM {table}", database=DATABASE)]
        shown = ", ".join(f"HEX(CAST(`{name}` AS BINARY))" for name in columns if not name.startswith("_cdc_"))
        found[table] = sorted(map(list, server.run(f"SELECT {shown} FROM {table}", database=DATABASE)), key=str)
    return found


if __name__ == "__main__":
    sys.exit(main())
