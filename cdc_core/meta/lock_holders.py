"""Which processes of this machine hold the locks of an SQLite file: for a message, so "unknown" is a valid answer."""

from __future__ import annotations

import os
from pathlib import Path

_LOCKS = Path("/proc/locks")
"""Linux: `1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`; the last part of the third group is the inode."""


def holders_of(file: str) -> str:
    """`The process 4711 (lockstep)`, or several of them, that block our write; "" if none is known."""
    inodes = set()
    for suffix in ("", "-wal", "-shm", "-journal"):
        try:
            inodes.add(str(os.stat(file + suffix).st_ino))
        except OSError:
            continue
    try:
        lines = _LOCKS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found: dict[str, None] = {}
    for line in lines:
        # A waiting process has its line after the holder's, marked with `->`.
        words = line.split()
        if len(words) < 6 or words[1] == "->" or words[3] != "WRITE" or words[5].rpartition(":")[2] not in inodes:
            continue
        if words[4] != str(os.getpid()):
            found[words[4]] = None
    names = [f"{pid}{_program(pid)}" for pid in found]
    return f"The process{'es' if len(names) > 1 else ''} {', '.join(names)}" if names else ""


def _program(pid: str) -> str:
    """The program's name alone: arguments may hold what must not be shown."""
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8').strip()})"
    except (OSError, UnicodeDecodeError):
        return ""
