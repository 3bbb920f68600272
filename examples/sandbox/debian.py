"""Programs outside the system: small Debian trees in the cache, built by debootstrap.

The system gets nothing but, when absent, the package `debootstrap`. Needs root; what runs from a tree does not.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from examples.sandbox.cache import SandboxError, cache_dir, cached


@dataclass(frozen=True)
class Tree:
    """A tree and what it is for.

    suite:     of Debian; None for that of this machine.
    mirror:    None for that of this machine's own apt.
    target:    of the Makefile, which sets it up.
    otherwise: how to do without it.
    available: None when the program can be used, else the reason why not.
    """

    name: str
    folder: str
    suite: str | None
    packages: str
    size_mb: int
    target: str
    otherwise: str
    available: Callable[[], str | None]
    mirror: str | None = None

    @property
    def root(self) -> Path:
        return cache_dir() / self.folder

    def setup(self) -> None:
        """Makes the program available; SandboxError with the reason where that cannot be done."""
        if self.available() is None:
            return
        if os.geteuid() != 0:
            raise SandboxError(
                f"{self.name} can be set up by root only: run `make {self.target}` as root, or {self.otherwise}"
            )
        if shutil.which("apt-get") is None:
            raise SandboxError(f"{self.name} can be set up on Debian and its relatives only: {self.otherwise}")
        cached(self.folder, self._bootstrap)
        if reason := self.available():
            raise SandboxError(reason)

    def main(self) -> int:
        """The command line: with --if-possible it does not fail where that cannot be done."""
        try:
            self.setup()
        except SandboxError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return 0 if "--if-possible" in sys.argv[1:] else 1
        return 0

    def _bootstrap(self, into: Path) -> None:
        suite = self.suite or self._own_suite()
        size = f"about {self.size_mb} MB, a minute"
        print(f"setting up {self.name} under {self.root} ({size})", file=sys.stderr, flush=True)
        if shutil.which("debootstrap") is None:
            _run(["apt-get", "update", "-qq"])
            _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap"])
        mirror = self.mirror or self._mirror()
        _run(["debootstrap", "--variant=minbase", f"--include={self.packages}", suite, str(into), mirror])
        shutil.rmtree(into / "var/cache/apt", ignore_errors=True)

    def _own_suite(self) -> str:
        about = platform.freedesktop_os_release()
        if about["ID"] != "debian" or "VERSION_CODENAME" not in about:
            raise SandboxError(f"{self.name} can be set up on a release of Debian only: {self.otherwise}")
        return about["VERSION_CODENAME"]

    def _mirror(self) -> str:
        """The Debian mirror of the machine's own apt sources: the one that is known to be reachable."""
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
        by_origin = _run(command).split()
        uris = by_origin or _run(command[:-1]).split()
        for uri in uris:
            if "security" not in uri:
                return uri
        raise SandboxError(
            f"apt's sources do not name a Debian mirror, so {self.name} cannot be fetched: {self.otherwise}"
        )


def loader(root: Path, *libraries: str) -> tuple[str, ...]:
    """What runs a program of a tree with the tree's own C library, and those of `libraries`, folders below it: no
    chroot, no root. Raises SandboxError."""
    # usr/lib64 of some releases is an absolute link, which leads out of the tree.
    found = next(chain(root.glob("usr/lib/*/ld-linux-*.so.*"), root.glob("usr/lib*/ld-linux-*.so.*")), None)
    if found is None:
        raise SandboxError(f"{root} has no dynamic loader. Remove the folder and set it up again.")
    folders = [path.parent for path in root.glob("usr/lib/*/libc.so.6")] + [root / library for library in libraries]
    return (str(found), "--library-path", ":".join(map(str, folders)))


def _run(command: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False
    )
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
