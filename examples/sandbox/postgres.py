"""PostgreSQL 17, for the meta tables."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from examples.sandbox.artifacts import POSTGRES, fetch
from examples.sandbox.cache import SandboxError, cached
from examples.sandbox.process import HOST, Directory, Server, ServerProcess, launch

USER = "postgres"
# PostgreSQL refuses to run as root: root runs it as this user.
_UNPRIVILEGED = "nobody" if os.geteuid() == 0 else None


@dataclass(frozen=True, kw_only=True)
class Postgres(Server):
    """A running PostgreSQL."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)

    @classmethod
    def start(cls, directory: Path | str | None = None) -> Self:
        """A server that answers, empty, or with the data that `directory` already has."""
        binaries = cls.fetch()
        place = Directory(directory, "postgres")
        try:
            password, process_on = _prepared(binaries, place)
        except BaseException:
            place.remove()
            raise
        port, process = launch(place, process_on)
        return cls(host=HOST, port=port, user=USER, password=password, _process=process, _directory=place)

    @staticmethod
    def fetch() -> Path:
        """The unpacked server: downloaded once, then from the cache."""
        return cached(f"postgres-{POSTGRES.version}", _unpack)

    def url(self, database: str = "postgres") -> str:
        """A SQLAlchemy URL: postgresql+psycopg://user:password@host:port/database"""
        return f"postgresql+psycopg://{self.user}:{self.password}@{self.host}:{self.port}/{database}"


def _unpack(into: Path) -> None:
    jar = fetch(POSTGRES) / f"{POSTGRES.name}-{POSTGRES.version}.jar"
    with zipfile.ZipFile(jar) as archive:
        inner = next(name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as tar:
            tar.extractall(into, filter="tar")


def _prepared(binaries: Path, place: Directory) -> tuple[str, Callable[[int], ServerProcess]]:
    """The password, and what makes the server's process for a port; its data are there."""
    base, data, secret = place.path / "server", place.path / "data", place.path / "password"
    if not base.exists():
        # The cache may be in root's home, which others cannot enter: the server gets a copy next to its data.
        shutil.copytree(binaries, base, symlinks=True)
    if not data.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(12))
        data.mkdir(mode=0o700)
        _give_away(place.path, data, secret)
        _initdb(base, data, secret)
    password = secret.read_text()
    options = {"fsync": "off", "listen_addresses": HOST, "unix_socket_directories": "", "max_connections": "50"}
    options["shared_buffers"] = "32MB"
    flags = [f"--{name}={value}" for name, value in options.items()]

    def process_on(port: int) -> ServerProcess:
        return ServerProcess(
            "PostgreSQL",
            [f"{base}/bin/postgres", "-D", str(data), "-p", str(port), *flags],
            directory=place,
            ready=partial(_answers, port, password),
            user=_UNPRIVILEGED,
            stop_signal=signal.SIGINT,  # SIGTERM would wait for every client to leave
        )

    return password, process_on


def _give_away(directory: Path, data: Path, secret: Path) -> None:
    """Lets the unprivileged user own the data and reach them; a no-op when we are not root."""
    if _UNPRIVILEGED is None:
        return
    account = pwd.getpwnam(_UNPRIVILEGED)
    for path in (data, secret):
        os.chown(path, account.pw_uid, account.pw_gid)
    directory.chmod(0o711)
    for parent in directory.parents:
        if not parent.stat().st_mode & 0o001:
            raise SandboxError(
                f"PostgreSQL runs as the user {_UNPRIVILEGED}, who cannot enter {parent}. "
                "Give a directory that every user can reach, or set TMPDIR to one."
            )


def _initdb(base: Path, data: Path, secret: Path) -> None:
    command = [f"{base}/bin/initdb", "-D", str(data), "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}"]
    command += ["--encoding=UTF8", "--locale=C", "--no-sync"]
    account = pwd.getpwnam(_UNPRIVILEGED) if _UNPRIVILEGED else None
    done = subprocess.run(
        command,
        cwd=data.parent,
        capture_output=True,
        text=True,
        check=False,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode != 0:
        raise SandboxError(f"initdb failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _answers(port: int, password: str) -> bool:
    import psycopg

    try:
        psycopg.connect(
            host=HOST, port=port, user=USER, password=password, dbname="postgres", connect_timeout=5
        ).close()
    except psycopg.OperationalError:
        return False
    return True
