"""How long what works on a whole chain takes, and how much memory, where the chain has many batches.

    make bench-chain                                                 10,000 batches of 5 tables
    make bench-chain BENCH_ARGS="--batches 1440 --tables 300"

The manifests are real ones, with definitions of 20 columns; the parts have their sizes and no content, since nothing
that is measured here opens one. Each step runs in a process of its own, as a command does: its peak of memory is that
of the process, of which some 110 MiB are the interpreter and its libraries (the step `nothing`).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cdc_core import config
from cdc_core.config import Pipeline
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.operations.open_pipeline import open_pipeline
from cdc_core.stage import manifest as manifests
from cdc_core.stage import start_record
from cdc_core.stage.layout import PartName, part_path
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage

MINUTE_US = 60_000_000
START_US = 1_767_225_600 * 1_000_000
"""2026-01-01."""
ROWS, PART_BYTES = 10, 5_000


def definition(number: int) -> TableSchema:
    columns = [Column("id", ColumnType("bigint"), False, 1)]
    columns += [Column(f"c{at}", ColumnType("varchar", length=100, charset="utf8mb4")) for at in range(19)]
    return TableSchema("shop", f"t{number:05d}", tuple(columns))


def place(number: int) -> Position:
    return Position(0, f"binlog.{1 + number // 1000:06d}", 4 + 1_000_000 * (number % 1000))


def batch(number: int, schemas: list[TableSchema]) -> Manifest:
    """A minute of the log, with rows of all tables."""
    begin, end = (
        Position(0, f"binlog.{1 + at // 1000:06d}", 4 + 1_000_000 * (at % 1000)) for at in (number, number + 1)
    )
    window_us = START_US + (number * MINUTE_US) // (60 * MINUTE_US) * 60 * MINUTE_US
    now_us = START_US + (number + 1) * MINUTE_US
    parts = tuple(
        Part(
            table=schema.name,
            path=part_path(schema.name, window_us, PartName("shop", begin.seq, 1, at)),
            rows=ROWS,
            size_bytes=PART_BYTES,
            plain_bytes=3 * PART_BYTES,
            sha256=f"{number:032x}{at:032x}",
            schema_id=schema.id,
            min_seq=begin.seq,
            max_seq=begin.seq + 900_000,
            ops={"c": ROWS},
        )
        for at, schema in enumerate(schemas)
    )
    return Manifest(
        pipeline="chain",
        source="shop",
        epoch=1,
        begin=Checkpoint(begin, gtid_set=f"0-1-{number}", server="server_id=1", watermark_us=now_us - MINUTE_US),
        end=Checkpoint(end, gtid_set=f"0-1-{number + 1}", server="server_id=1", watermark_us=now_us),
        window_start_us=window_us,
        window_end_us=window_us + 60 * MINUTE_US,
        parts=parts,
        events=100,
        transactions=10,
        created_us=now_us,
        schemas={schema.id: schema for schema in schemas},
    )


def make(pipeline: Pipeline, store: ObjectStore, batches: int, tables: int) -> None:
    """A chain on the stage, without meta."""
    schemas = [definition(number) for number in range(tables)]
    root = Path(pipeline.stage.uri.removeprefix("file://"))
    for number in range(batches):
        made = batch(number, schemas)
        if not number:
            start_record.put(store, "shop", made.begin, pipeline="chain")
        for part in made.parts:
            path = root / part.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(part.size_bytes)
        path = root / made.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.to_bytes())


def nothing(pipeline: Pipeline) -> str:
    open_stage(pipeline.stage)
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        return f"{meta.now_us() > 0}"


def rebuild(pipeline: Pipeline) -> str:
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        lease = meta.leases.acquire("shop", "benchmark", 600)
        lease, added = meta.rebuild(lease, manifests.chain(open_stage(pipeline.stage), "shop"), None)
        meta.leases.release(lease)
        return f"{added} batches"


def plan(pipeline: Pipeline) -> str:
    from cdc_core.operations.apply.plan import plan as made

    with open_pipeline(pipeline) as opened:
        found = made(opened, window=None, run_id="benchmark")
        return f"{len(found.target('t').batches)} batches"


def status(pipeline: Pipeline) -> str:
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        return f"{meta.status.find(['t']).sources[0].batches} batches"


def verify(pipeline: Pipeline) -> str:
    return f"{len(manifests.verify(open_stage(pipeline.stage), 'shop'))} problems"


def opened(pipeline: Pipeline) -> str:
    import lockstep

    return f"{len(lockstep.open(pipeline.stage.uri).tables())} tables"


STEPS: dict[str, Callable[[Pipeline], str]] = {
    "nothing": nothing, "rebuild": rebuild, "plan": plan, "status": status, "verify": verify, "open": opened,
}  # fmt: skip


def measured(file: Path, step: str) -> dict[str, float | str]:
    """Of a step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.chain", "--step", step, "--pipeline", str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_step(file: Path, step: str) -> None:
    pipeline = config.load(file)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    said = STEPS[step](pipeline)
    print(
        json.dumps(
            {
                "step": step,
                "said": said,
                "wall_s": round(time.monotonic() - begun_s, 2),
                "cpu_s": round(time.process_time() - cpu_s, 2),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--pipeline", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        run_step(asked.pipeline, asked.step)
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-chain-") as folder:
        file = Path(folder) / "chain.yaml"
        file.write_text(
            f"""
pipeline: chain
meta: {{url: 'sqlite:///{folder}/meta.db'}}
stage: {{uri: 'file://{folder}/stage'}}
sources: [{{name: shop, connection: 'env:BENCHMARK_SOURCE', server_id: 77}}]
tables: {{include: ['shop\\..*']}}
targets: [{{name: t, connections: ['env:BENCHMARK_TARGET'], tables: {{'*': {{}}}}}}]
""",
            encoding="utf-8",
        )
        pipeline = config.load(file)
        make(pipeline, open_stage(pipeline.stage), asked.batches, asked.tables)
        print(f"{asked.batches:,} batches of {asked.tables:,} tables\n")
        print(f"{'step':10}{'wall s':>8}{'CPU s':>8}{'peak MiB':>10}")
        for step in STEPS:
            figures = measured(file, step)
            print(
                f"{step:10}{figures['wall_s']:>8}{figures['cpu_s']:>8}{figures['peak_mib']:>10}   {figures['said']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
