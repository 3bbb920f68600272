"""Lays MySQL's own server beside the system: a small Debian tree in the cache, made by debootstrap.

    python -m examples.sandbox.setup_mysql [--if-possible]

The system gets nothing but, when absent, the package `debootstrap`. Needs root; the server itself does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from examples.sandbox.cache import SandboxError, cached
from examples.sandbox.mysql import MySql, mysql_root

# Debian's stable releases have MariaDB only; unstable carries MySQL's long-term release.
SUITE = "sid"
PACKAGES = "mysql-server-core,mysql-client-core"


def setup() -> None:
    """Makes a MySQL server available; SandboxError with the reason where that cannot be done."""
    if MySql.available() is None:
        return
    if os.geteuid() != 0:
        raise SandboxError("MySQL 9 can be set up by root only: run `make mysql` as root, or put a mysqld on PATH")
    if shutil.which("apt-get") is None:
        raise SandboxError("MySQL 9 can be set up on Debian and its relatives only: put a mysqld on PATH")
    cached(mysql_root().name, _bootstrap)
    if reason := MySql.available():
        raise SandboxError(reason)


def _bootstrap(into: Path) -> None:
    print(f"setting up MySQL 9 under {mysql_root()} (about 650 MB, a minute)", file=sys.stderr, flush=True)
    if shutil.which("debootstrap") is None:
        _run(["apt-get", "update", "-qq"])
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap"])
    _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(into), _mirror()])
    shutil.rmtree(into / "var/cache/apt", ignore_errors=True)


def _mirror() -> str:
    """The Debian mirror of the machine's own apt sources: the one that is known to be reachable."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    by_origin = _run(command).split()
    uris = by_origin or _run(command[:-1]).split()
    for uri in uris:
        if "security" not in uri:
            return uri
    raise SandboxError("apt's sources name no Debian mirror, so MySQL 9 cannot be fetched: put a mysqld on PATH")


def _run(command: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False
    )
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def main() -> int:
    try:
        setup()
    except SandboxError as error:
        print(f"MySQL 9: {error}", file=sys.stderr)
        return 0 if "--if-possible" in sys.argv[1:] else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
