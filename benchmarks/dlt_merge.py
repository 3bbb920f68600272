"""Seconds in which dlt merges changes into an Iceberg table that it has filled: run in an environment that has dlt.

Arguments: Parquet files of the rows and of the changes, and a folder.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import dlt  # type: ignore[import-not-found]
import pyarrow.parquet as pq


def main() -> None:
    rows, changes, folder = sys.argv[1:]
    lake = dlt.destinations.filesystem(f"file://{folder}/dlt-lake")
    line = dlt.pipeline("peer", pipelines_dir=f"{folder}/dlt", dataset_name="shop", destination=lake)

    def load(path: str, how: Any) -> float:
        table = pq.read_table(path)
        orders = dlt.resource(
            lambda: iter([table]), name="orders", primary_key="id", write_disposition=how, table_format="iceberg"
        )
        began_s = time.perf_counter()
        line.run(orders, loader_file_format="parquet")
        return time.perf_counter() - began_s

    load(rows, "append")
    print(load(changes, {"disposition": "merge", "strategy": "upsert"}))


if __name__ == "__main__":
    main()
