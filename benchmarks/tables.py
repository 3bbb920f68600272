"""`python -m benchmarks.tables`: one row in each of many tables, extracted; then one row more.

The server is a MariaDB, or with `--mysql` a MySQL 9, of its own. The extractor runs in a process of its own; its peak
memory is that of this process. `--profile` prints what the stager's thread spends its time on.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql

PIPELINE = """
pipeline: tables
schedule: "0 0 * * *"
sources: [{{name: many, connection: env:MANY, server_id: 4711, start: earliest}}]
tables: {{include: ['many\\..*']}}
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
"""


def extract(root: Path, *, profile: bool) -> dict[str, Any]:
    """In this process: seconds, and MiB resident at the most."""
    from cdc_core.config import parse
    from cdc_core.meta import Meta
    from cdc_core.operations.extract import Extractor
    from cdc_core.operations.open_pipeline import OpenPipeline
    from cdc_core.stage.stores import open_stage

    pipeline = parse(PIPELINE.format(root=root), where="benchmark")
    stats = cProfile.Profile()
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        started, started_cpu = time.perf_counter(), time.process_time()
        with Extractor(OpenPipeline(pipeline, meta, open_stage(pipeline.stage)), "many") as extractor:
            opened, opened_cpu = time.perf_counter(), time.process_time()
            if profile:
                stats.enable()
            done = extractor.drain()
            stats.disable()
            drained, drained_cpu = time.perf_counter(), time.process_time()
    if profile:
        pstats.Stats(stats, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return {
        "open_s": round(opened - started, 2),
        "drain_s": round(drained - opened, 2),
        "files": done.staged.files,
        "rows": done.staged.rows,
        "open_cpu_s": round(opened_cpu - started_cpu, 2),
        "drain_cpu_s": round(drained_cpu - opened_cpu, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def extracted(root: Path, url: str, *, profile: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tables", "--extract", str(root), *(["--profile"] if profile else [])]
    started = time.perf_counter()
    answer = subprocess.run(command, env=os.environ | {"MANY": url}, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(answer.stdout)
    return {"process_s": round(time.perf_counter() - started, 2)} | figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--mysql", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--extract", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.extract is not None:
        print(json.dumps(extract(options.extract, profile=options.profile)))
        return
    with tempfile.TemporaryDirectory() as folder, (MySql if options.mysql else MariaDb).start(server_id=9) as server:
        root = Path(folder)
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE many")
            for number in range(options.tables):
                cursor.execute(f"CREATE TABLE many.t{number} (id INT PRIMARY KEY, note VARCHAR(20), at DATETIME)")
            for number in range(options.tables):
                cursor.execute(f"INSERT INTO many.t{number} VALUES (1, 'one', NOW())")
        print("all tables", extracted(root, server.url, profile=options.profile), flush=True)
        files = [path.stat() for path in (root / "stage").rglob("*.parquet")]
        manifest = max(path.stat().st_size for path in (root / "stage/manifests").rglob("*.json"))
        mean = sum(file.st_size for file in files) / max(len(files), 1)
        print(f"{len(files)} files of {mean:,.0f} bytes; manifest {manifest:,} bytes")
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO many.t7 VALUES (2, 'two', NOW())")
        print("one row more", extracted(root, server.url, profile=options.profile), flush=True)


if __name__ == "__main__":
    main()
