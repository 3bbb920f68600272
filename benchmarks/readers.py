"""One measurement: a reader of the log, in a process of its own. `python -m benchmarks.readers NAME JOB.json`.

Each function reads one stretch of the log once and returns seconds and what it read. The clock runs from the moment
the stream is asked for to the last durable byte; loading the program is counted beside it, not in it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.workloads import Stretch
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage.stores import open_stage

SOURCE = "bench"


def pipeline_of(stretch: Stretch, place: Path) -> str:
    return f"""
        pipeline: bench
        sources:
          - name: {SOURCE}
            connection: env:BENCH
            server_id: 4242
            start: {{position: {{file: {stretch.file}, offset: 4}}}}
        tables: {{include: ['{stretch.database}\\..*']}}
        stage: {{uri: {(place / "stage").as_uri()}}}
        meta: {{url: "sqlite:///{place}/meta.db"}}
        limits: {{batch_rows: 100000000, batch_mib: 100000}}
        """


def lockstep(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """The whole extractor: ring, lease, Parquet parts with all bookkeeping columns, manifest, meta (SQLite)."""
    from cdc_core.config import parse
    from cdc_core.meta import Meta
    from cdc_core.operations.extract import Extractor

    os.environ["BENCH"] = url
    pipeline = parse(pipeline_of(stretch, place), where="benchmark")
    meta = Meta.open(pipeline.meta.url, pipeline.pipeline)
    try:
        opened_s = time.perf_counter()
        with Extractor(OpenPipeline(pipeline, meta, open_stage(pipeline.stage)), SOURCE) as extractor:
            started_s, used_s = time.perf_counter(), time.process_time()
            result = extractor.drain()
            ended_s, used_s = time.perf_counter(), time.process_time() - used_s
    finally:
        meta.close()
    return {
        "seconds": ended_s - started_s,
        "cpu": used_s,
        "opening": started_s - opened_s,
        "changes": result.staged.rows,
        "staged_bytes": sum(part.stat().st_size for part in (place / "stage").rglob("*.parquet")),
    }


def lockstep_command(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """`lockstep extract`, its process from start to end."""
    file = place / "bench.yaml"
    file.write_text(pipeline_of(stretch, place))
    command = [str(Path(sys.executable).parent / "lockstep"), "extract", str(file), "--json"]
    started_s = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "BENCH": url}, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started_s
    (source,) = json.loads(done.stdout)["sources"]
    return {"seconds": seconds, "changes": source["rows"]}


def pyarrow(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """What is the least that the Parquet of the result costs: pyarrow writes the rows that Lockstep staged, in memory
    already, with its defaults and zstd."""
    import pyarrow.parquet as pq

    found = lockstep(url, stretch, place)
    tables = [pq.read_table(path) for path in sorted((place / "stage").rglob("*.parquet"))]
    seconds = []
    for _ in range(3):
        started_s = time.perf_counter()
        for number, table in enumerate(tables):
            pq.write_table(table, place / f"{number}.parquet", compression="zstd", compression_level=1)
        seconds.append(time.perf_counter() - started_s)
    return {"seconds": min(seconds), "changes": found["changes"]}


SLICE = 20_000
"""Changes that mysql-replication is given; its time is scaled to the whole."""


def mysql_replication(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """Values of rows as Python objects, `.rows`; nothing is written."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    address = urlsplit(url)
    settings = {"host": address.hostname, "port": address.port, "user": address.username, "passwd": address.password}
    started_s = time.perf_counter()
    stream = BinLogStreamReader(
        connection_settings=settings, server_id=4243, log_file=stretch.file, log_pos=4, resume_stream=True,
        blocking=False, only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[stretch.database],
    )  # fmt: skip
    changes = 0
    for event in stream:
        changes += len(event.rows)
        if changes >= SLICE:
            break
    seconds = time.perf_counter() - started_s
    stream.close()
    return {"seconds": seconds * stretch.changes / changes, "changes": stretch.changes, "read": changes}


def rivet(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """`rivet cdc --format parquet` of one table, its process from start to end."""
    program = os.environ["RIVET"]
    (place / "checkpoint").write_text(json.dumps({"file": stretch.file, "pos": 4}))
    command = [
        program, "cdc", "--source-env", "RIVET_URL", "--table", stretch.tables[0], "--server-id", "4244",
        "--checkpoint", str(place / "checkpoint"), "--output", str(place / "out"), "--format", "parquet",
    ]  # fmt: skip
    environ = {**os.environ, "RIVET_URL": f"{url}/{stretch.database}"}
    started_s = time.perf_counter()
    subprocess.run(command, env=environ, check=True, capture_output=True, cwd=place)
    seconds = time.perf_counter() - started_s
    manifest = json.loads((place / "out" / "manifest.json").read_text())
    return {"seconds": seconds, "changes": _rows_of(manifest)}


def _rows_of(manifest: dict[str, Any]) -> int:
    return int(manifest["row_count"])


def mysqlbinlog(url: str, stretch: Stretch, place: Path) -> dict[str, Any]:
    """`mysqlbinlog --raw`: the server's own client copies the log's bytes to files, and looks at no row."""
    address = urlsplit(url)
    command = [
        *json.loads(os.environ["MYSQLBINLOG"]), "--no-defaults", "--raw", "--read-from-remote-server", "--to-last-log",
        f"--host={address.hostname}", f"--port={address.port}", f"--user={address.username}",
        f"--result-file={place}/", stretch.file,
    ]  # fmt: skip
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "MYSQL_PWD": address.password or ""})
    seconds = time.perf_counter() - started_s
    whole = (place / stretch.end_file).stat().st_size == stretch.end_offset
    return {"seconds": seconds, "changes": stretch.changes if whole else 0}


READERS: dict[str, Callable[[str, Stretch, Path], dict[str, Any]]] = {
    "lockstep": lockstep,
    "lockstep_command": lockstep_command,
    "pyarrow": pyarrow,
    "mysql_replication": mysql_replication,
    "rivet": rivet,
    "mysqlbinlog": mysqlbinlog,
}


def main() -> None:
    began_s = time.perf_counter()
    name, job = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as place:
        found = READERS[name](job["url"], Stretch(**job["stretch"]), Path(place))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found |= {
        "process": time.perf_counter() - began_s,
        "process_cpu": sum(usage.ru_utime + usage.ru_stime for usage in used),
        "rss_mib": max(usage.ru_maxrss for usage in used) / 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
