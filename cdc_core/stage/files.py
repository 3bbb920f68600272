"""A stage in a local directory.

Every file is written under a temporary name, fsynced, and linked or renamed into place; then its directory is
fsynced. It may assume a POSIX file system with hard links. Only a PartOutput is written under its final name from the
start (no reader looks there before a manifest names it), which saves a second copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from cdc_core.errors import LockstepError, Refused, RetryLater
from cdc_core.stage.objects import Leftover, ObjectInfo, checked_path, missing

_TEMPORARY = ".tmp-"
_SYNCED_AT_ONCE = 16
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that waiting does not cure."""


def _file_system_sync() -> Callable[[int], int] | None:
    """syncfs(2), which reports what could not be written since Linux 5.8; None before, and elsewhere."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if os.uname().sysname != "Linux" or release is None or (int(release[1]), int(release[2])) < (5, 8):
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return call if call is None else lambda descriptor: int(call(descriptor))


SYNC_FILE_SYSTEM = _file_system_sync()


class FileStore:
    """See the module's docstring; `uri` is `file:///directory`."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.root = Path(unquote(uri.removeprefix("file://")))

    @property
    def uri(self) -> str:
        return self._uri

    def put(self, path: str, data: bytes) -> None:
        self._place(path, data, if_absent=False)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._place(path, data, if_absent=True)

    def open_output(self, paths: Iterable[str], scratch: Path) -> FileOutput:
        for path in paths:
            with contextlib.suppress(FileExistsError), self._writing(path):
                self._make(self.root)
                local = self._local(path)
                file = self._open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL, durable=False)
                return FileOutput(self, path, file, self._writing)
        raise ValueError("no free name among the given paths")

    def settle(self, paths: Sequence[str]) -> None:
        """One call for the whole file system where the kernel says what it could not write; else file by file."""
        if not paths:
            return
        with self._writing(paths[0]):
            if SYNC_FILE_SYSTEM is not None:
                descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    if SYNC_FILE_SYSTEM(descriptor) == 0:
                        return
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                finally:
                    os.close(descriptor)
            folders = dict.fromkeys(folder for path in paths for folder in self.folders(path))
            with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
                for _ in pool.map(_sync, [self._local(path) for path in paths]):
                    pass
                for _ in pool.map(_sync, folders):
                    pass

    def get(self, path: str) -> bytes:
        try:
            return self._local(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise missing(path, self.uri) from None
        except OSError as error:
            raise self._unreadable(path, error) from None

    def stat(self, path: str) -> ObjectInfo | None:
        try:
            status = self._local(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(path, error) from None
        return ObjectInfo(path, status.st_size, status.st_mtime)

    def open_input(self, path: str) -> BinaryIO:
        try:
            return self._local(path).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise missing(path, self.uri) from None
        except OSError as error:
            raise self._unreadable(path, error) from None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        infos = [info for info in self._walk(prefix) if not _name(info.path).startswith(_TEMPORARY)]
        yield from sorted(infos, key=lambda info: info.path.encode())

    def delete(self, path: str) -> None:
        local = self._local(path)
        with self._writing(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            local.unlink()
            _sync(local.parent)
        with contextlib.suppress(OSError):  # not empty, or gone: another writer's business
            for parent in local.parents:
                if parent == self.root:
                    break
                parent.rmdir()

    def leftovers(self) -> Iterator[Leftover]:
        infos = [info for info in self._walk("") if _name(info.path).startswith(_TEMPORARY)]
        return (Leftover(info.path, info.modified) for info in infos)

    def discard(self, leftover: Leftover) -> None:
        self.delete(leftover.path)

    def local_path(self, path: str) -> Path | None:
        return self._local(path)

    def location(self, path: str) -> str:
        return str(self._local(path).absolute())

    def spark_uri(self, path: str) -> str:
        return f"file:{self._local(path).absolute()}"

    def _local(self, path: str) -> Path:
        return self.root / checked_path(path)

    def _place(self, path: str, data: bytes, *, if_absent: bool) -> bool:
        """Writes under a temporary name, then links (if absent) or renames into place."""
        final = self._local(path)
        temporary = final.with_name(_TEMPORARY + uuid.uuid4().hex)
        with self._writing(path):
            if if_absent and final.exists():
                return False
            try:
                descriptor = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with open(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if if_absent:
                    os.link(temporary, final)
                else:
                    temporary.replace(final)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            _sync(final.parent)
        return True

    def folders(self, path: str) -> Sequence[Path]:
        """The folders that lead to a path, from the root on."""
        folders = [self._local(path).parent]
        while folders[-1] != self.root:
            folders.append(folders[-1].parent)
        return folders[::-1]

    def _open(self, local: Path, flags: int, *, durable: bool = True) -> int:
        """Opens, making the directory; again when a deleter removed the empty directory in between."""
        for attempt in range(20):
            self._make(local.parent, durable=durable)
            try:
                return os.open(local, flags, 0o644)
            except FileNotFoundError:
                if attempt == 19:
                    raise
        raise AssertionError("unreachable")

    def _make(self, directory: Path, *, durable: bool = True) -> None:
        """Makes a directory; with `durable` each new entry is fsynced in its parent."""
        if directory.is_dir():
            return
        new = [directory, *directory.parents]
        new = new[: next(i for i, path in enumerate(new) if path.exists())]
        # Only the owner may read the rows, until the owner opens the stage's own directory to others.
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            if new[-1].parent.is_dir():  # nobody has swept it meanwhile: this file system takes no directory (/proc)
                raise OSError(errno.EROFS, f"{error.strerror}, in {new[-1].parent}") from error
            raise
        if durable:
            _sync_all(path.parent for path in reversed(new))

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raises RetryLater (disk.error) for a folder that cannot be listed: it is not an empty one."""

        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # gone meanwhile, or never there
                raise self._unreadable(str(error.filename or top), error) from None

        top = self.root / prefix.rpartition("/")[0]
        for directory, _, names in os.walk(top, onerror=failed):
            relative = Path(directory).relative_to(self.root).as_posix()
            for name in names:
                path = name if relative == "." else f"{relative}/{name}"
                if path.startswith(prefix):
                    info = self.stat(path)
                    if info is not None:
                        yield info

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Turns errors of the file system into Lockstep's; FileExistsError is left to the caller."""
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise self._unwritable(path, error) from error

    def _unwritable(self, path: str, error: OSError) -> LockstepError:
        if error.errno in _NO_LINKS and error.filename2 is not None:
            return Refused(
                f"The file system has no hard links, which writing only if absent needs: {error.strerror}.",
                where=self.uri,
                code="stage.unsuitable",
                remedy="put the stage on a local POSIX file system (ext4, xfs, ...) or in a bucket",
            )
        if error.errno in _NOT_ALLOWED:
            return Refused(
                f"{path} cannot be written: {error.strerror or error}.",
                where=self.uri,
                code="disk.not_permitted",
                remedy="let the account that runs Lockstep create and write this directory, or name another one in "
                "stage.uri",
            )
        return RetryLater(
            f"{path} cannot be written: {error.strerror or error}.",
            where=self.uri,
            code="disk.error",
            remedy="free space on the disk, or raise the quota; the next attempt continues where this one stopped",
        )

    def _unreadable(self, path: str, error: OSError) -> LockstepError:
        return RetryLater(
            f"{path} cannot be read: {error.strerror or error}.",
            where=self.uri,
            code="disk.error",
            remedy="let the account that runs Lockstep read the stage's directory; then run again",
        )


Writing = Callable[[str], AbstractContextManager[None]]
"""Around writes to a path: turns errors of the file system into Lockstep's."""


class FileOutput:
    """A PartOutput that grows in its final place."""

    def __init__(self, store: FileStore, path: str, descriptor: int, writing: Writing) -> None:
        self._store = store
        self._path = path
        self._descriptor = descriptor
        self._writing = writing

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        with self._writing(self._path):
            while len(view):
                view = view[os.write(self._descriptor, view) :]
        return len(data)

    def publish(self, *, settled: bool = True) -> str:
        with self._writing(self._path):
            if settled:
                os.fsync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            if settled:  # whoever made the directories: another source may feed the same table
                _sync_all(self._store.folders(self._path))
        return self._path

    def discard(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._store.delete(self._path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _sync_all(directories: Iterable[Path]) -> None:
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):  # a deleter removed it, empty: then nothing of ours is in it
            _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
