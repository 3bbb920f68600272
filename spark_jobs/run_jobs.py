"""Runs the jobs of one run in one Spark application, as cdc_core/apply/spark_application.py orders them.

Arguments: the path of the Unix socket from which orders come, in a folder of its own, and of the file for this driver's
output. An order is a line of JSON with the name of a job and its arguments; the answer is a line with the job's exit
status. No more orders: the application ends.

The driver may be started before there is a job for it. It loads its libraries meanwhile. Those of quality take seconds
to load: they are loaded beside the earlier jobs, which mostly wait: for Arrow's own threads, and for the target.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def host(argv: Sequence[str]) -> int:
    address, output = argv
    print_to(output)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        # Nobody else comes this way; who has made the folder may be killed before there is a job.
        shutil.rmtree(Path(address).parent, ignore_errors=True)
        import_beside()
        with channel.makefile("rb") as orders:
            for line in orders:
                order = json.loads(line)
                status = run_job(order["job"], order["arguments"])
                sys.stdout.flush()
                sys.stderr.flush()
                channel.sendall(b"%d\n" % status)
        end_spark()
    return 0


def import_beside() -> None:
    """Loads the libraries of quality in a thread. pyspark is loaded first: two threads that load modules which need
    each other may get half of one."""
    import_jobs()
    threading.Thread(target=_import_suites, daemon=True).start()


def import_jobs() -> None:
    import spark_jobs.filter
    import spark_jobs.merge
    import spark_jobs.quality
    import spark_jobs.write  # noqa: F401


def _import_suites() -> None:
    with suppress(Exception):  # quality itself reports it
        import spark_jobs.suite_runner  # noqa: F401


def end_spark() -> None:
    """Ends the JVM that this driver has started, if it has, so that nothing of the application outlives it."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is not None:
        jvm.stdin.close()
        jvm.wait()


def print_to(output: str) -> None:
    """Otherwise the JVM passes on what this driver prints, and an answer may come before the error that it is about."""
    with open(output, "ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def run_job(job: str, arguments: Sequence[str]) -> int:
    """The exit status of a job. Each is imported when it is due: the libraries of quality take seconds to load."""
    match job:
        case "merge":
            from spark_jobs.merge import main
        case "filter":
            from spark_jobs.filter import main
        case "write":
            from spark_jobs.write import main
        case "quality":
            from spark_jobs.quality import main
        case "probe":
            from spark_jobs.probe import main
        case "load":
            import_jobs()
            import spark_jobs.suite_runner  # noqa: F401

            return 0
        case _:
            raise ValueError(f"Spark has jobs for merge, filter, write, quality, load and probe; this one is {job!r}.")
    return main(arguments)


if __name__ == "__main__":
    status = host(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Python would spend most of a second on the modules, which nothing needs any more
