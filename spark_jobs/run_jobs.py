"""Runs the jobs of one run in one Spark application, as cdc_core/apply/spark_application.py orders them.

Arguments: the path of the Unix socket from which orders come, and of the file for this driver's output. An order is a
line of JSON with the name of a job and its arguments; the answer is a line with the job's exit status. No more orders:
the application ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence

from spark_jobs.job import leave


def host(argv: Sequence[str]) -> int:
    address, output = argv
    print_to(output)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        with channel.makefile("rb") as orders:
            for line in orders:
                order = json.loads(line)
                status = run_job(order["job"], order["arguments"])
                sys.stdout.flush()
                sys.stderr.flush()
                channel.sendall(b"%d\n" % status)
    return 0


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
        case _:
            raise ValueError(f"Spark has jobs for merge, filter, write and quality; this one is {job!r}.")
    return main(arguments)


if __name__ == "__main__":
    leave(host(sys.argv[1:]))
