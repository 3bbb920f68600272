"""What a private MariaDB and a private MySQL have in common: one handle, and data copied from a template."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pymysql
from pymysql.constants.ER import ACCESS_DENIED_ERROR as ER_ACCESS_DENIED

from examples.sandbox.cache import SandboxError, cached
from examples.sandbox.process import HOST, Directory, Server, ServerProcess, free_port, launch

USER = "root"

# Names as on the command line, without the dashes; None for an option without a value.
Options = Mapping[str, str | None]

# Durable against a crash of the server (kill -9), which is what tests do, not of the machine: nothing waits for a disk.
COMMON_OPTIONS: Options = {
    "bind-address": HOST,
    "socket": "server.sock",  # relative to the data: a full path may exceed the 107 bytes of a socket's name
    "pid-file": "server.pid",
    "skip-name-resolve": None,
    "log-bin": "binlog",
    "binlog-row-metadata": "FULL",
    "binlog-row-image": "FULL",
    "sync-binlog": "0",
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "64M",
    "character-set-server": "utf8mb4",
    "local-infile": "1",
    "max-allowed-packet": "64M",
}


@dataclass(frozen=True)
class Flavor:
    """How one kind of server is called and how its first data are made."""

    name: str
    template: str  # name of the template in the cache; holds the version
    command: tuple[str, ...]
    options: Options
    install: Callable[[Path], None]  # fills an empty data folder; root has no password yet
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class SqlServer(Server):
    """A running MariaDB or MySQL."""

    mariadb: ClassVar[bool] = False

    host: str
    port: int
    user: str
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """mysql://user:password@host:port"""
        return f"mysql://{self.user}:{self.password}@{self.host}:{self.port}"

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection:
        """A new connection as root; `options` go to pymysql.connect (autocommit, charset, cursorclass, ...)."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=database,
            **options,
        )

    def run(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Statements in one session as root, each committed by itself; the rows of the last one."""
        with self.connect(database, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if statements else []


def start(
    flavor: Flavor, directory: Path | str | None, server_id: int, options: Options, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Starts a server on a copy of the flavor's template, or on the data that `directory` already has.

    env: variables besides those of this process. Returns the fields of its SqlServer.
    """
    template = cached(f"templates/{flavor.template}", lambda into: _make_template(flavor, into))
    place = Directory(directory, flavor.name.lower())
    data = place.path / "data"
    if not data.exists():
        shutil.copytree(template / "data", data)
        shutil.copy(template / "password", place.path / "password")
    password = (place.path / "password").read_text()
    wanted = {
        **COMMON_OPTIONS,
        **flavor.options,
        "server-id": str(server_id),
        **{name.replace("_", "-"): value for name, value in options.items()},
    }
    if env is not None:
        flavor = replace(flavor, env={**(flavor.env or os.environ), **env})
    port, process = launch(place, lambda port: _process(flavor, place, data, port, wanted, password))
    return {"host": HOST, "port": port, "user": USER, "password": password, "_process": process, "_directory": place}


def _process(flavor: Flavor, place: Directory, data: Path, port: int, options: Options, password: str) -> ServerProcess:
    def answers() -> bool:
        try:
            pymysql.connect(
                host=HOST, port=port, user=USER, password=password, connect_timeout=5, read_timeout=5
            ).close()
        except pymysql.err.OperationalError as error:
            if error.args[0] == ER_ACCESS_DENIED:
                raise SandboxError(f"{flavor.name} does not know the password of {place.path}/password.") from error
            return False
        return True

    # A server that starts clears the folder of temporary tables, which would be /tmp for all of them.
    temporary = place.path / "tmp"
    temporary.mkdir(exist_ok=True)
    options = {"tmpdir": str(temporary), **options}
    flags = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]
    command = [*flavor.command, f"--datadir={data}", f"--port={port}", *flags]
    return ServerProcess(flavor.name, command, directory=place, ready=answers, env=flavor.env)


def _make_template(flavor: Flavor, into: Path) -> None:
    """Installs the system tables once and gives root a password, so that each later start only copies."""
    data = into / "data"
    data.mkdir(mode=0o750)
    flavor.install(data)
    password = secrets.token_hex(12)
    init = into / "init.sql"
    init.touch(mode=0o600)
    init.write_text(
        f"CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n"
        f"ALTER USER root@localhost IDENTIFIED BY '{password}';\n"
        # MariaDB's installer makes these too, without a password, and they would go before '%'.
        f"DROP USER IF EXISTS root@'127.0.0.1', root@'::1', root@'{socket.gethostname()}';\n"
    )
    place = Directory(into, flavor.name)
    options = {**COMMON_OPTIONS, **flavor.options, "init-file": str(init), "server-id": "1"}
    options.pop("log-bin")
    options["skip-log-bin"] = None
    process = _process(flavor, place, data, free_port(), options, password)
    try:
        process.start()
    finally:
        process.stop()
        init.unlink()
    # Two servers must not share an identity: a new one is made at the first start.
    (data / "auto.cnf").unlink(missing_ok=True)
    secret = into / "password"
    secret.touch(mode=0o600)
    secret.write_text(password)
