"""On PYTHONPATH of every process of a crash case: kills one of them, once, before or after a function of Lockstep.

LOCKSTEP_CRASH is a JSON of module, function (a dotted name in it), when (before | after), victim (process: the one that
calls; jvm: Spark's, below it; or a pid), flag (a file that is made when it happens),
call (which of a process's calls it is, from 1 on), given (only calls that have this text as an argument count) and
signal (SIGKILL if there is none).
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import signal
import sys

ORDER = json.loads(os.environ.get("LOCKSTEP_CRASH") or "{}")


def crash():
    try:
        os.close(os.open(ORDER["flag"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if ORDER["victim"] == "jvm":
        from pyspark import SparkContext

        victim = SparkContext._gateway.proc.pid
    else:
        victim = os.getpid() if ORDER["victim"] == "process" else int(ORDER["victim"])
    os.kill(victim, getattr(signal, ORDER.get("signal", "SIGKILL")))


def dying(function):
    calls = itertools.count(1)

    @functools.wraps(function)
    def call(*args, **rest):
        given = ORDER.get("given")
        due = (not given or given in (*args, *rest.values())) and next(calls) == ORDER["call"]
        if due and ORDER["when"] == "before":
            crash()
        result = function(*args, **rest)
        if due and ORDER["when"] == "after":
            crash()
        return result

    return call


class Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        arm(module)


def arm(module):
    """Puts the dying function in the place of the real one."""
    *path, name = ORDER["function"].split(".")
    owner = functools.reduce(getattr, path, module)
    setattr(owner, name, dying(getattr(owner, name)))


def arm_loaded():
    """In a process that has loaded the program: wherever the function was imported by its name."""
    module = importlib.import_module(ORDER["module"])
    real = getattr(module, ORDER["function"], None)
    arm(module)
    for other in list(sys.modules.values()):
        for name, value in list(vars(other).items()) if other.__name__.startswith(("cdc_core.", "spark_jobs.")) else ():
            if real is not None and value is real:
                setattr(other, name, getattr(module, ORDER["function"]))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != ORDER["module"]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec


if ORDER:
    sys.meta_path.insert(0, Finder())
