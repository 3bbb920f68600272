"""A drain in a process of its own, which may be killed, and whose memory can be measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_DRAIN_AND_PEAK = """
import sys
from pathlib import Path
from cdc_core.config import load
from cdc_core.operations.extract import Extractor
from tests.lab.opened import opened
from cdc_core.meta import Meta
pipeline = load(Path(sys.argv[1]))
with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta, Extractor(opened(pipeline, meta), "shop") as extractor:
    extractor.drain()
print(next(row.split()[1] for row in open("/proc/self/status") if row.startswith("VmHWM")))
"""


def draining(pipeline: Path, url: str) -> subprocess.Popen[str]:
    """Drains the source `shop`, a server at env:SOURCE, up to now; prints the most memory that this took, in KiB."""
    return subprocess.Popen(
        [sys.executable, "-c", _DRAIN_AND_PEAK, str(pipeline)],
        env={**os.environ, "SOURCE": url},
        stdout=subprocess.PIPE,
        text=True,
    )


def killed_inside_a_transaction(pipeline: Path, url: str, stage: Path) -> None:
    """A drain that is killed as soon as pieces of the large transaction that it reads lie in part files."""
    with draining(pipeline, url) as worker:
        while not any(part.stat().st_size for part in stage.rglob("*.parquet")):
            assert worker.poll() is None
            time.sleep(0.01)
        worker.send_signal(signal.SIGKILL)
