"""Pipeline files, and a pipeline whose meta database knows what a page shows of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdc_core import config
from cdc_core.meta.meta_rows import RingDepth
from tests.lab.made_batches import HOUR_US, START_US, manifest
from tests.lab.made_line import WINDOW, Line
from tests.lab.pipeline_file import pipeline_document, pipeline_text

ALERT = "<script>alert(1)</script>"
ODD = "shop.odd"
"""A source table that the staged pipeline has isolated."""

TARGET = {"name": "main", "connections": ["airflow:target_db"], "tables": {"*": {}}}


def write(
    folder: Path, data: Path, name: str = "shop", *, source: str | None = None, file: str | None = None, **sections: Any
) -> Path:
    """Writes a pipeline file with one source and one target into `folder`, whose stage and meta are in `data`.

    source: its name. sections: as of `pipeline_document`.
    """
    path = folder / (file or f"{name}.yaml")
    read = {"name": source or f"{name}_db", "connection": "airflow:source_db", "start": "earliest"}
    document = pipeline_document(
        data, "shop", source=read, pipeline=name, **{"routes": "[]", "targets": [TARGET], **sections}
    )
    path.write_text(pipeline_text(document))
    return path


def staged(file: Path) -> Line:
    """The pipeline of a file with batches in three windows, of which a run took the first; another run failed."""
    parsed = config.load(file)
    root = Path(parsed.stage.uri.removeprefix("file://")).parent
    line = Line.open(root, **json.loads(parsed.model_dump_json()))
    common = {"source": parsed.sources[0].name, "pipeline": parsed.pipeline}
    line.stage(
        manifest(0, **common, tables={"shop.orders": 1234}),
        manifest(1, **common, window=1, tables={}, notes=(f"needs re-sync of table {ALERT}",)),
        replace(manifest(2, **common, window=3, tables={"shop.orders": 5}), isolated={ODD: "since then"}),
        until_us=START_US + 4 * HOUR_US,
    )
    line.meta.leases.renew(line.leases["shop_db"], 600, RingDepth(5, 600, 1234, 8000))
    line.done("first", WINDOW)
    run = line.plan("second")
    line.meta.runs.record_failure(run.run_id, f"it broke at {ALERT}")
    return line
