"""Answers each line of stdin, a JSON of arguments, directory, environ, out and err, with the exit code of `lockstep`.

With `"started": true` the answer comes at once and is the process id; the line `{"ended": PID}` asks for its exit code.
Each command runs in a process of its own, forked from this one, which has loaded the program, and what jobs import once
a command needs it: loading takes longer than most commands do. Nothing of a command is left for the next.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import cdc_core
import spark_jobs
from cdc_core.binlog.warm_kernels import warm
from cdc_core.cli import main
from cdc_core.cli.app import command_tree

HOOK = Path(__file__).parents[1] / "crash" / "hook" / "sitecustomize.py"

APPLYING = {"run", "repair", "cutover"}
"""Commands that do the jobs of a run."""
_LEFT = {"__main__", "migrations"}
"""Parts of names of modules that do something when imported."""
_WITH_DUCKDB = {
    "cdc_core.stage.scratch_duckdb",
    "cdc_core.stage.public",
    "cdc_core.stage.stage_reader",
    "cdc_core.stage.sql_views",
}
"""DuckDB reports frozen objects as leaks at exit."""


def load(package: ModuleType, *others: str) -> None:
    """others: what its modules import later."""
    modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for name in (*modules, *others):
        if name not in _WITH_DUCKDB and not _LEFT & set(name.split(".")):
            with suppress(ModuleNotFoundError):  # of an extra that this Python may lack
                importlib.import_module(name)


def settle() -> None:
    """What was loaded is ready to be forked."""
    assert "duckdb" not in sys.modules, "it would print its leaks at the end of each command"
    gc.freeze()  # else the collector of each child would copy this process's memory by writing to it
    assert threading.active_count() == 1, f"a fork would lose threads: {threading.enumerate()}"


def become(order: dict[str, Any]) -> None:
    """Runs the command, which leaves by SystemExit as it does when it is a program. The process then ends as Python
    ends it, but does not take all modules apart: that would copy most of the memory of the process that has forked it,
    and take longer than most commands do."""
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        descriptor = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Whoever runs the tests in the background of a shell ignores interrupts, and so would all children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["lockstep", *order["arguments"]]
    if "LOCKSTEP_CRASH" in os.environ:
        arm()
    try:
        main()
    except SystemExit as left:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code)


def arm() -> None:
    """As in a process that has the hook on its PYTHONPATH (crash/hook/sitecustomize.py)."""
    spec = importlib.util.spec_from_file_location("crash_hook", HOOK)
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    hook.arm_loaded()


if __name__ == "__main__":
    load(cdc_core, "croniter")
    command_tree()
    warm()
    settle()
    with_jobs = False
    while line := sys.stdin.readline():
        order = json.loads(line)
        if not with_jobs and APPLYING & set(order.get("arguments", ())):
            load(spark_jobs, "pyiceberg.catalog.rest")
            settle()
            with_jobs = True
        child = order.get("ended") or os.fork()
        if child == 0:
            become(order)
        if order.get("started"):
            print(child, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
