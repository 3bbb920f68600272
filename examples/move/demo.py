"""`make move`: a shop moves from one database to the tables of four, and back once, while its application writes.

Every step is a command of `lockstep`, as docs/move.md has them. In the end the application looks for each of its own
writes. Exit status 0 only if all of them are there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rich.console import Console

from examples.move.application import NEW, OLD, Application, Layout
from examples.sandbox.mariadb import MariaDb

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TABLES = ("orders", "items")
LAYOUT = Layout("shop", databases=4, tables=2)
ROWS = 10_000
"""Of each table, from before Lockstep starts."""
REST = {1_000_000 + n: n for n in range(1, ROWS + 1)}

# Lines keep this width where the output goes to a file.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Move:
    """The demo's folder, its servers and its application."""

    root: Path
    environ: dict[str, str]
    application: Application

    def step(self, why: str, *arguments: str) -> None:
        """Runs a command, and says how long the application could not write meanwhile; ends the demo if it fails."""
        console.rule(f"[bold]{why}", align="left")
        console.print(f"[cyan]$ lockstep {' '.join(arguments)}[/]")
        self.application.seen_until_now()
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "cdc_core.cli", *arguments],
            cwd=self.root, env=self.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        console.print(done.stdout.rstrip(), markup=False)
        if done.returncode != 0:
            console.print(done.stderr.rstrip(), markup=False)
            console.print(f"[red]✗[/] it ended with code {done.returncode}; its files are in {self.root}")
            sys.exit(1)
        took_s = [write.took_s for write in self.application.seen_until_now()]
        console.print(
            f"[green]✓[/] {time.monotonic() - began_s:.0f} s; meanwhile the application made {len(took_s):,} writes, "
            f"of which the longest took {max(took_s, default=0.0):.2f} s"
        )


def main() -> int:
    """Runs the demo; the exit status says whether every write is there."""
    root = REPOSITORY / ".lockstep" / "move"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    with ExitStack() as running:
        with console.status("starting a MariaDB with the shop, and another one"), ThreadPoolExecutor(2) as pool:
            starting = [pool.submit(MariaDb.start, root / name, server_id=at) for at, name in ((1, OLD), (2, NEW))]
            old, new = (running.enter_context(future.result()) for future in starting)
        _fill(old)
        _write_files(root)
        application = Application({OLD: old, NEW: new}, root / "to", LAYOUT, TABLES, per_s=200, keys=1_000, rest=REST)
        environ = {**os.environ, "MOVE_OLD": old.url, "MOVE_NEW": new.url}
        with application:
            _story(Move(root, environ, application))
        return _shown(application)


def _story(move: Move) -> None:
    shop, back = "shop.yaml", "shop_back.yaml"
    move.step("The rows are copied, and what changes meanwhile", "run", shop)
    move.step("Every row is compared", "verify", shop)
    move.step("What would be switched, and what speaks against it", "cutover", "plan", shop)
    move.step("All of it as far as the proof: writes continue afterwards", "cutover", "rehearse", shop)
    move.step("There", "cutover", "run", shop)
    move.step("The way back carries what the application writes now", "run", back)
    move.step("It is a pipeline like any other: runs follow each other (--every, or its DAG)", "run", back)
    move.step("It is verified like every pipeline", "verify", back)
    move.step("Whether the application could go back now", "cutover", "status", shop)
    move.step("Back, by the same steps", "cutover", "back", shop)
    move.step("There once more", "cutover", "run", shop)
    move.step("Nobody goes back any more", "cutover", "complete", shop)


def _fill(old: MariaDb) -> None:
    with closing(old.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, n INT NOT NULL)")
            cursor.execute(f"INSERT INTO shop.{table} SELECT seq + 1000000, seq FROM shop.seq_1_to_{ROWS}")


def _write_files(root: Path) -> None:
    names = {"root": str(root), "databases": str(LAYOUT.databases), "tables": str(LAYOUT.tables)}
    text = (HERE / "shop.yaml").read_text(encoding="utf-8")
    (root / "shop.yaml").write_text(Template(text).safe_substitute(names), encoding="utf-8")
    shutil.copy(HERE / "switch.sh", root / "switch.sh")
    (root / "switch.sh").chmod(0o755)
    (root / "to").write_text(OLD)


def _shown(application: Application) -> int:
    console.rule("[bold]What the application finds of its own writes", align="left")
    ok = not application.errors
    for error in application.errors:
        console.print(f"[red]✗[/] a write failed: {error}")
    for table, wrong in application.wrong(NEW).items():
        ok = ok and not wrong
        mark = "[red]✗[/]" if wrong else "[green]✓[/]"
        written = len(application.written[table])
        console.print(f"{mark} {table}: {written:,} rows written; missing, twice or others: {wrong:,}")
    console.print(f"Writes that met a closed table, and were made again at the other place: {application.refused:,}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
