"""MySQL 9 (or 8, by LOCKSTEP_MYSQL): the one that setup_mysql.py lays into the cache, or a `mysqld` on PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from examples.sandbox.cache import SandboxError, cache_dir
from examples.sandbox.debian import loader
from examples.sandbox.sql_server import Flavor, Options, SqlServer, start

RELEASE = os.environ.get("LOCKSTEP_MYSQL", "9")
FOLDER = f"mysql{RELEASE}"
"""The Debian tree in the cache."""
_LIBRARIES = "usr/lib/mysql/private"

_OPTIONS: Options = {
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "mysqlx": "OFF",
    "secure-file-priv": "",
    "innodb-flush-method": "nosync",
}
_AS_ROOT = ("--user=root",) if os.geteuid() == 0 else ()


class MySql(SqlServer):
    @classmethod
    def start(
        cls,
        directory: Path | str | None = None,
        *,
        server_id: int = 1,
        options: Options | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """A server that answers; `options` are those of mysqld without the dashes, None for one without a value."""
        options = options or {}
        lower_case = options.get("lower-case-table-names", "0") != "0"
        return cls(**start(_flavor(lower_case=lower_case), directory, server_id, options, env))

    @staticmethod
    def version() -> tuple[int, ...]:
        """As (9, 7, 4)."""
        return tuple(int(part) for part in _find().version.split("."))

    @staticmethod
    def available() -> str | None:
        """None when a server can be started, else the reason why not."""
        try:
            _find()
        except SandboxError as error:
            return str(error)
        return None

    @staticmethod
    def client(name: str) -> tuple[str, ...] | None:
        """The command of a program that comes with the server, or is on PATH; None if there is none."""
        root = cache_dir() / FOLDER
        if (root / "usr/bin" / name).exists():
            return (*loader(root, _LIBRARIES), f"{root}/usr/bin/{name}")
        found = shutil.which(name)
        return (found,) if found else None


@dataclass(frozen=True)
class _Installation:
    command: tuple[str, ...]
    version: str


def _find() -> _Installation:
    root = cache_dir() / FOLDER
    command: tuple[str, ...]
    if (root / "usr/sbin/mysqld").exists():
        command = (*loader(root, _LIBRARIES), f"{root}/usr/sbin/mysqld", "--no-defaults")
        command += (f"--basedir={root}/usr", f"--plugin-dir={root}/usr/lib/mysql/plugin")
        command += (
            f"--lc-messages-dir={root}/usr/share/mysql",
            f"--character-sets-dir={root}/usr/share/mysql/charsets",
        )
    else:
        found = shutil.which("mysqld", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if found is None:
            raise SandboxError("MySQL 9 was not found: run `make mysql` (Debian, as root) or put a mysqld on PATH")
        command = (found, "--no-defaults")
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Ver (\d+)\.(\d+)\.(\d+)", said)
    if version is None or "MariaDB" in said or int(version[1]) < 8:
        raise SandboxError(f"{command[0]} is not MySQL 8 or newer: {said.strip()!r}. Run `make mysql` as root.")
    return _Installation((*command, *_AS_ROOT), ".".join(version.groups()))


def _flavor(*, lower_case: bool) -> Flavor:
    """lower_case: names of tables have no case; a server can only be made so, not changed."""
    installation = _find()
    names = ["--lower-case-table-names=1"] if lower_case else []

    def install(data: Path) -> None:
        command = [*installation.command, "--initialize-insecure", f"--datadir={data}", *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"mysqld --initialize-insecure failed:\n{(done.stdout + done.stderr)[-2000:]}")

    return Flavor(
        name="MySQL",
        template=f"mysql-{installation.version}-uid{os.geteuid()}{'-lower' if lower_case else ''}",
        command=(*installation.command, *names),
        options=_OPTIONS,
        install=install,
    )
