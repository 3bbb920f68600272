"""The demo's last page: what was read, staged and applied, and whether source and target are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import polars
import pymysql
from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table

from cdc_core.meta import LedgerRow, Meta, RunRow
from cdc_core.meta.meta_rows import CopyState, SourceStatus
from cdc_core.model.windows import from_us
from cdc_core.stage import cuts
from cdc_core.stage.manifest import chain, verify
from cdc_core.stage.stores import open_store
from examples.shop.compare import TableComparison, compare
from examples.shop.place import PIPELINE, Place
from examples.shop.tables import LAKE, LOGICAL, SHARD_DATABASES, SHARD_TABLES, rebuilt, source_tables

if TYPE_CHECKING:
    from examples.shop.workload import Shop

SOURCE = "shop"

QUERY = """SELECT _cdc_op AS op, count(*) AS changes, count(DISTINCT order_id) AS orders, max(_cdc_ts) AS latest
FROM '{files}'
GROUP BY op ORDER BY op"""


def show(
    console: Console,
    place: Place,
    shop: Shop,
    source: pymysql.Connection,
    target: pymysql.Connection,
    *,
    unchanged: bool,
) -> bool:
    """Print the summary; True when everything adds up."""
    console.rule("[bold]What happened")
    console.print(
        "Transactions at the shop: " + ", ".join(f"{kind} {count:,}" for kind, count in shop.done.most_common())
    )
    with Meta.open(place.meta_url, PIPELINE) as meta:
        runs = meta.status.find().runs[::-1]
        accounts = [(run, meta.ledgers.find(run.run_id)) for run in runs]
        (source_status,) = meta.status.find().sources
    ledgers = [row for _, rows in accounts for row in rows]
    checks = {
        "the stage verifies: files, sizes, checksums, no gap in positions": _staged(console, place),
        "the rows from before Lockstep started are copied: no table on the stage lacks any": _copied(source_status),
        "every ledger adds up": bool(ledgers) and not any(row.entry.problems() for row in ledgers),
        "repeating the first run changed no row of the target": unchanged,
    }
    console.print(_ledger_table(accounts))
    comparisons = compare(source, target)
    console.print(_comparison_table(comparisons))
    checks["source and target are equal, row by row, in all columns"] = _equal(comparisons)
    checks["a target filled from the staged files alone is equal to the source, too"] = _equal(
        compare(source, target, rebuilt)
    )
    for what, holds in checks.items():
        console.print(f"[green]✓[/] {what}" if holds else f"[red]✗ NOT:[/] {what}")
    return all(checks.values())


def _copied(source: SourceStatus) -> bool:
    """Every table that had rows is copied as a whole."""
    tables = sum(len(source_tables(logical)) for logical in LOGICAL)
    return not source.partial and [copy.state for copy in source.copies] == [CopyState.COPIED] * tables


def _equal(comparisons: list[TableComparison]) -> bool:
    return all(
        comparison.differing == 0 and comparison.source_rows == comparison.target_rows > 0 for comparison in comparisons
    )


def show_next(console: Console, place: Place) -> None:
    """What to look at now: a query over the staged files, run here, and the commands."""
    console.rule("[bold]What to look at next")
    query = QUERY.format(files=place.stage.relative_to(place.root.parents[1]) / "changes/cdc_table=orders/*/*.parquet")
    console.print("The staged changes are plain Parquet. This query ran just now, in DuckDB:\n")
    console.print(query, style="cyan", markup=False)
    console.print(duckdb.sql(query), markup=False)
    console.print(
        "All tables of the lake at its newest cut are the shop at one position of its log. Polars reads them:\n"
    )
    console.print(_lake_at_a_cut(place))
    console.print(
        "The table as it is, folded from the files alone:\n"
        f"  [cyan].venv/bin/lockstep stage export {place.pipeline_file.relative_to(place.root.parents[1])} orders "
        "-o /tmp/orders.parquet[/]\n"
        "Airflow's UI with this pipeline, to trigger and backfill by hand:\n"
        "  [cyan]make ui[/]"
    )


def _lake_at_a_cut(place: Place) -> Table:
    """Orders and their customers, joined at the newest cut."""
    catalog = load_catalog(LAKE, type="sql", uri=place.catalog_url)
    cut = cuts.newest(open_store(place.stage_uri), LAKE)
    assert cut is not None  # the run to the lake has made one
    tables = {
        table.logical: catalog.load_table(table.name).scan(snapshot_id=table.snapshot).to_polars()
        for table in cut.tables
    }
    found = tables["orders"].join(tables["customers"], left_on="customer_id", right_on="id", how="left")
    rows = found.group_by("status").agg(orders=polars.len(), customers=polars.col("customer_id").n_unique())
    (position,) = (str(source.position) for source in cut.sources.values())
    shown = Table(title=f"Orders at {position}, by `lockstep lake at`", title_justify="left")
    for name in rows.columns:
        shown.add_column(name, justify="left" if name == "status" else "right")
    for row in rows.sort("status").iter_rows():
        shown.add_row(*(str(value) for value in row))
    return shown


def _staged(console: Console, place: Place) -> bool:
    store = open_store(place.stage_uri)
    table = Table(title="Staged batches", title_justify="left")
    for column in ("window", "from", "to"):
        table.add_column(column, no_wrap=True)
    for column in ("transactions", "changes", "copied", "files", "KiB"):
        table.add_column(column, justify="right")
    for batch in chain(store, SOURCE):
        table.add_row(
            _window(batch.window_start_us, batch.window_end_us),
            str(batch.begin.position),
            str(batch.end.position),
            f"{batch.transactions:,}" if not batch.chunks else "",
            f"{batch.rows:,}" if not batch.chunks else "",
            f"{batch.rows:,}" if batch.chunks else "",
            str(len(batch.parts)),
            f"{batch.size_bytes / 1024:,.0f}",
        )
    console.print(table)
    problems = verify(store, SOURCE, deep=True)
    for problem in problems:
        console.print(f"[red]{problem.code}[/] {problem.path}: {problem.what}")
    return not problems and table.row_count > 0


def _ledger_table(accounts: list[tuple[RunRow, tuple[LedgerRow, ...]]]) -> Table:
    """The ledgers in short; `lockstep status` and the page have every figure."""
    table = Table(title="Ledgers: changes = superseded + written + not needed", title_justify="left")
    table.add_column("run of", no_wrap=True)
    table.add_column("table")
    for column in ("changes", "superseded", "written", "not needed"):
        table.add_column(column, justify="right")
    table.add_column("adds up")
    for run, rows in accounts:
        name = f"up to {from_us(run.window[1]):%H:%M:%S}" if run.window else "by hand"
        if not rows:
            table.add_row(name, "(nothing new)", style="dim")
        for row in rows:
            entry = row.entry
            changes = entry.staged_rows + entry.key_changes
            figures = (changes, entry.superseded, entry.written, entry.stale + entry.absent)
            problems = "; ".join(entry.problems())
            table.add_row(name, entry.table, *(f"{figure:,}" for figure in figures), problems or "[green]yes[/]")
    table.caption = "superseded: a later change of the same key; not needed: older than the target, or already absent"
    return table


def _window(start_us: int, end_us: int) -> str:
    return f"{from_us(start_us):%H:%M} to {from_us(end_us):%H:%M}"


def _comparison_table(comparisons: list[TableComparison]) -> Table:
    table = Table(title="Source against target, by checksum of all columns of each row", title_justify="left")
    table.add_column("table")
    for column in ("source rows", "target rows", "differing"):
        table.add_column(column, justify="right")
    shards = [f"shop_{database}.*_{number}" for database in range(SHARD_DATABASES) for number in range(SHARD_TABLES)]
    for shard in shards:
        table.add_column(shard, justify="right")
    for comparison in comparisons:
        table.add_row(
            comparison.table,
            f"{comparison.source_rows:,}",
            f"{comparison.target_rows:,}",
            f"[green]{comparison.differing}[/]" if comparison.differing == 0 else f"[red]{comparison.differing:,}[/]",
            *(f"{rows:,}" for rows in comparison.shards.values()),
        )
    return table
