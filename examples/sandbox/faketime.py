"""libfaketime for a server of the sandbox, whose clock a test can set while it runs.

Debian's package is unpacked into the cache; nothing is installed. SandboxError where that cannot be done.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.sandbox.cache import SandboxError, cached

_OTHERWISE = "a server's clock cannot be set: install apt-get's package lists and run again"


@dataclass(frozen=True)
class Clock:
    """A clock that servers started with `environment` go by. It goes by the machine's until it is set."""

    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        self.set(0)
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            # Timeouts go by the monotonic clock, which no one sets.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead_s: int) -> None:
        """This many seconds ahead of the machine's clock from now on; negative: behind it."""
        self.file.write_text(f"{ahead_s:+d}\n")


def _library() -> Path:
    tree = cached("faketime", _unpack)
    found = next(tree.rglob("libfaketime.so.1"), None)
    if found is None:
        raise SandboxError(f"libfaketime's package has no library: {_OTHERWISE}")
    return found


def _unpack(into: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SandboxError(f"there is no apt-get and dpkg-deb: {_OTHERWISE}")
    for command in (
        ["apt-get", "download", "libfaketime"],
        ["sh", "-c", "dpkg-deb -x libfaketime_*.deb . && rm *.deb"],
    ):
        done = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}: {_OTHERWISE}")
