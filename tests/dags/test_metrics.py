"""What the tasks' metrics look like to a collector: OTLP over HTTP, sent by Airflow's own client as a task ends, and
StatsD's datagrams."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from cdc_core.model.position import Position
from cdc_core.operations.extract import DrainResult, DrainStats, StagingTotals
from lockstep_airflow import metrics
from tests.dags.conftest import Run

Points = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OF_SOURCE = (("pipeline", "shop"), ("source", "shop_db"))
OF_TARGET = (("pipeline", "shop"), ("target", "shards"))
HOUR_S = 3600

TASK = """
import time
from dataclasses import replace
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from cdc_core.operations.apply.commit import CommitSummary
from cdc_core.model.run_plan import LedgerEntry
from cdc_core.operations.extract import DrainResult, DrainStats, StagingTotals
from cdc_core.model.position import Position
from lockstep_airflow import metrics

stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)

def drain(rows, **stats):
    staged = StagingTotals(batches=1, files=2, rows=rows, events=2 * rows, size_bytes=100 * rows)
    return DrainResult(True, staged, Position(0, "binlog.000007", 1234), 0, DrainStats(**stats))
"""


@pytest.fixture
def collected(python: Run) -> Iterator[Callable[..., Points]]:
    """Runs code as a task of an Airflow that sends to a collector; the last value of each series that came there."""
    points: Points = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (measured for scope in resource.scope_metrics for measured in scope.metrics):
                    for point in [*metric.gauge.data_points, *metric.sum.data_points]:
                        tags = tuple(sorted((tag.key, tag.value.string_value) for tag in point.attributes))
                        points[metric.name, tags] = point.as_double or point.as_int
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def run(code: str, **environ: str) -> Points:
        to_us = {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        }
        done = python(TASK + code, **(to_us | environ))
        assert done.returncode == 0, done.stderr[-3000:]
        return points

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield run
        server.shutdown()
        thread.join()


def test_drains_and_commits_add_up_and_lag_is_the_time_since_the_watermark(collected: Callable[..., Points]) -> None:
    """In one process: loading Airflow takes longer than all of it."""
    found = collected("""
first, second = drain(10, put_waits=3, losses=1), drain(25, put_waits=3, take_waits=2, losses=2)
metrics.drained("shop", "shop_db", first, None)
metrics.drained("shop", "shop_db", second, first)
metrics.drained("shop", "shop_db", drain(5), None)  # another extractor

metrics.lag("shop", "shop_db", int((time.time() - 3600) * 1e6))
metrics.lag("shop", "ahead", int((time.time() + 3600) * 1e6))
metrics.lag("shop", "never", 0)

tables = tuple(LedgerEntry("r", "t", name, 9, 0, 7, 2, 4, 1, 2, 0, 0) for name in ("orders", "customers"))
summary = CommitSummary("run", "shards", 0, 1, batches=2, moved=4, tables=tables)
metrics.committed("shop", summary)
metrics.committed("shop", replace(summary, moved=0, again=True))
metrics.committed("shop", replace(summary, target="new", moved=0))  # a replay, which moves no consume record
""")
    assert found.pop(("airflow.lockstep.lag_seconds", OF_SOURCE)) >= HOUR_S
    assert found == {
        ("airflow.lockstep.batches_staged", OF_SOURCE): 2,
        ("airflow.lockstep.rows_staged", OF_SOURCE): 30,
        ("airflow.lockstep.events_staged", OF_SOURCE): 60,
        ("airflow.lockstep.bytes_staged", OF_SOURCE): 3000,
        ("airflow.lockstep.ring_put_waits", OF_SOURCE): 3,
        ("airflow.lockstep.ring_take_waits", OF_SOURCE): 2,
        ("airflow.lockstep.source_retries", OF_SOURCE): 2,
        ("airflow.lockstep.lag_seconds", (("pipeline", "shop"), ("source", "ahead"))): 0,
        ("airflow.lockstep.rows_winners", OF_TARGET): 14,
        ("airflow.lockstep.rows_written", OF_TARGET): 8,
        ("airflow.lockstep.rows_stale", OF_TARGET): 2,
        ("airflow.lockstep.rows_absent", OF_TARGET): 4,
        **{
            (f"airflow.lockstep.rows_{name}", (("pipeline", "shop"), ("target", "new"))): rows
            for name, rows in {"winners": 14, "written": 8, "stale": 2, "absent": 4}.items()
        },
    }


# Airflow's client leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_statsd_gets_them_without_tags_or_with_those_of_influxdb_and_nothing_where_it_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged = StagingTotals(batches=1, files=2, rows=10, events=20, size_bytes=1000)
    result = DrainResult(True, staged, Position(0, "binlog.000007", 1234), 0, DrainStats())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(listener.getsockname()[1]))
        for on, tagged, tags in (("True", "False", b""), ("True", "True", b",pipeline=shop,source=shop_db"),
                                 ("False", "False", b"")):  # fmt: skip
            monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", on)
            monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", tagged)
            stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
            metrics.drained("shop", "shop_db", result, None)
            if on == "True":
                names = {b"batches_staged": 1, b"rows_staged": 10, b"events_staged": 20, b"bytes_staged": 1000}
                wanted = {b"airflow.lockstep.%s%s:%d|c" % (name, tags, count) for name, count in names.items()}
                ours = (sent for sent in iter(lambda: listener.recv(4096), b"") if b".lockstep." in sent)
                assert set(islice(ours, len(wanted))) == wanted
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(4096)
