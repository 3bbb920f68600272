"""Where the tasks of a run and its Spark applications meet on one machine: a private folder with files of each slot.

    /tmp/lockstep-<uid>/      0700, of this user
      <hash of the run>/
        0.use       locked by the task that uses the application of slot 0, until its job has ended
        0.alive     locked by that application's JVM as long as it runs; holds its process id
        0.socket    where the application takes orders
        0.output    what it prints, for the log of the task that uses it

The locks are flock(2)'s, so that the kernel releases them when a process ends, however it ends. A file is removed only
by who holds the slot's `use`; a lock counts only on the file that has the name.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

SHORT = "/tmp"
"""The path of a Unix socket has at most 107 bytes (unix(7)); TMPDIR may be any."""
MAX_SLOTS = 16
IDENTITY = "LOCKSTEP_APPLICATION_IDENTITY"
"""The variable that tells an application whom it serves: not an argument, because it is a digest of logins, too."""


class NotPrivate(Exception):
    """The folder belongs to another user, others may read it, or it cannot be made."""


def run_folder(run: str) -> Path:
    """The folder of a run. run: text that no other run on this machine has, without secrets: others can see its hash
    in the arguments of processes. Raises NotPrivate."""
    base = Path(SHORT) / f"lockstep-{os.getuid()}"
    folder = base / sha256(f"{socket.gethostname()}\n{run}".encode()).hexdigest()[:16]
    try:
        for one in (base, folder):
            with suppress(FileExistsError):
                one.mkdir(mode=0o700)
            _require_private(one)
    except OSError as error:
        raise NotPrivate(f"{folder}: {error.strerror}") from None
    return folder


def _require_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise NotPrivate(f"{folder} is not a folder that only this user can use.")


def peer_is_this_user(channel: socket.socket) -> bool:
    """Whether the other end of a Unix socket is a process of this user (Linux: SO_PEERCRED)."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.getuid()


@dataclass(frozen=True, slots=True)
class Slot:
    """One application's files."""

    folder: Path
    number: int

    @property
    def use(self) -> Path:
        return self.folder / f"{self.number}.use"

    @property
    def alive(self) -> Path:
        return self.folder / f"{self.number}.alive"

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.number}.socket"

    @property
    def output(self) -> Path:
        return self.folder / f"{self.number}.output"

    def pid(self) -> int | None:
        """The process whose application the slot holds or held last."""
        try:
            return int(self.alive.read_text())
        except (OSError, ValueError):
            return None

    @contextmanager
    def used(self) -> Iterator[bool]:
        """Holds the slot for the block, unless another process does; whether it is held."""
        lock = locked(self.use)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def remove(self) -> None:
        """Removes the slot's files, and the folder with the last of them. The caller holds `use`."""
        for path in (self.socket, self.output, self.alive, self.use):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def slots(folder: Path) -> list[Slot]:
    """Those that have been used so far, by number; the first one always."""
    numbers = {int(path.stem) for path in folder.glob("*.use") if path.stem.isdigit()}
    return [Slot(folder, number) for number in sorted(numbers | {0})]


def sweep(folder: Path) -> None:
    """Removes what killed applications of other runs left beside this run's folder."""
    for other in folder.parent.iterdir():
        if other == folder or not other.is_dir():
            continue
        for slot in slots(other):
            with slot.used() as held:
                if held:
                    remove_ended(slot)


def remove_ended(slot: Slot) -> bool:
    """Removes the files of a slot whose application has ended; False if it runs. The caller uses the slot."""
    alive = locked(slot.alive)
    if alive is None:
        return False
    slot.remove()
    os.close(alive)
    return True


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a file, which is made if it is missing; None if another process holds it.

    The folder is made again if a sweep has just removed it.
    """
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.lstat()):
                return file
        os.close(file)  # it was removed meanwhile
