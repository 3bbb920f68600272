"""How long `lockstep extract` takes from its process's start until it asks its source for the log."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from examples.sandbox.sql_server import SqlServer

_PATIENCE_S = 60


def seconds_to_stream(server: SqlServer, rounds: int, environ: Mapping[str, str]) -> float:
    """The median of `rounds` starts after a first one, which makes meta, stage and position.

    What is waited for is the thread that the server gives to the reader.
    """
    with tempfile.TemporaryDirectory() as folder, server.connect(autocommit=True) as connection:
        pipeline = Path(folder) / "starting.yaml"
        pipeline.write_text(
            f"""
pipeline: starting
meta: {{url: 'sqlite:///{folder}/meta.db'}}
stage: {{uri: 'file://{folder}/stage'}}
sources: [{{name: origin, connection: 'env:BENCHMARK_SOURCE', server_id: 77, start: latest}}]
tables: {{include: ['starting\\..*']}}
""",
            encoding="utf-8",
        )
        command = [str(Path(sys.executable).parent / "lockstep"), "extract", str(pipeline)]
        known = {**environ, "BENCHMARK_SOURCE": server.url}
        subprocess.run(command, env=known, check=True, capture_output=True)
        found = []
        with connection.cursor() as cursor:
            for _ in range(rounds):
                cursor.execute("SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist")
                [(before,)] = cursor.fetchall()
                begun_s = time.monotonic()
                with subprocess.Popen(
                    [*command, "--follow"], env=known, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ) as process:
                    while True:
                        cursor.execute(
                            "SELECT COUNT(*) FROM information_schema.processlist "
                            "WHERE command LIKE 'Binlog Dump%%' AND id > %s",
                            (before,),
                        )
                        [(streams,)] = cursor.fetchall()
                        if streams:
                            break
                        if process.poll() is not None or time.monotonic() > begun_s + _PATIENCE_S:
                            process.kill()
                            raise SystemExit(f"`lockstep extract` asked for no stream (status {process.returncode})")
                        time.sleep(0.005)
                    found.append(time.monotonic() - begun_s)
                    process.terminate()
        return median(found)
