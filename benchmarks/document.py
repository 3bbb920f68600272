"""What every benchmark says about where it ran, and its place in docs/benchmarks.md."""

from __future__ import annotations

import os
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from examples.sandbox.sql_server import SqlServer

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def machine(server: SqlServer, load: float, *others: str) -> str:
    """load: how many processes wanted the cores already: where it is not near 0, all times are too long."""
    model = next(
        (
            row.partition(":")[2].strip()
            for row in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in row
        ),
        "unknown processor",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        [[version]] = cursor.fetchall()
    product = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    programs = [f"{product} {version}", f"Python {sys.version.split()[0]}", f"pyarrow {pa.__version__}", *others]
    said = (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({model}), shared with the server, load {load:.0f}; "
        f"{', '.join(programs)}."
    )
    return textwrap.fill(said, 120)


def keep(name: str, text: str) -> None:
    """Puts the figures of a benchmark into the document, between its marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{DOCUMENT} has no place for {name}: write {begin} and {end} into it")
    DOCUMENT.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
