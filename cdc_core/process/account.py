"""The home, name and folders of the account that a process runs as.

A container may run as a user id without a name, and without a home or with one that does not exist. Code that keeps
files other than those of a pipeline, here or in Spark, finds its folder through these functions.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping


def is_named() -> bool:
    """Whether the system knows a name of the user id. Java's logins need one (spark_jobs.spark_session)."""
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:
        return False


def settled(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with a home, a name, and a folder for compiled code where the account has none."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isdir(home) or (home == "/" and not os.access(home, os.W_OK)):
        home = _temporary()
    found = {**environ, "HOME": home}
    if not os.access(home, os.W_OK):
        found.setdefault("NUMBA_CACHE_DIR", f"{_temporary()}/kernels")
    if not is_named():
        found.setdefault("USER", str(os.getuid()))
        found.setdefault("SPARK_USER", found["USER"])
        # Java takes its home from the system's list of users, and else names it "?".
        found["SPARK_SUBMIT_OPTS"] = f"{environ.get('SPARK_SUBMIT_OPTS', '')} -Duser.home={home}"
    return found


def _temporary() -> str:
    """A folder of this account alone: compiled code is loaded from there."""
    folder = f"{tempfile.gettempdir()}/lockstep-{os.getuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    stat = os.lstat(folder)
    return folder if (stat.st_uid, stat.st_mode & 0o077) == (os.getuid(), 0) else tempfile.mkdtemp(prefix="lockstep-")
