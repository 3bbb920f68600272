"""An S3 server (s3proxy on the file system) that checks signatures and does conditional writes."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from examples.sandbox.artifacts import S3PROXY, fetch, java
from examples.sandbox.cache import SandboxError
from examples.sandbox.process import HOST, Directory, ServerProcess, free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
_ACCESS_KEY = "lockstep-sandbox"
# A small server: half a gigabyte of JVM beside Spark and two databases is enough.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PORT_ATTEMPTS = 5


@dataclass(frozen=True)
class S3Server:
    """A running server. `with` stops it and removes its temporary folder."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    directory: Path
    log: Path
    region: str = field(default=REGION, kw_only=True)
    _process: ServerProcess = field(repr=False, kw_only=True)
    _directory: Directory = field(repr=False, kw_only=True)

    @classmethod
    def start(cls, directory: Path | str | None = None) -> Self:
        """A server that answers, with no bucket yet, or with those that `directory` already has."""
        jars = fetch(S3PROXY)
        place = Directory(directory, "s3")
        log = place.path / "server.log"
        secret = secrets.token_hex(20)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = free_port()
            properties = _write_properties(place.path, port, secret)
            command = [java(), *_JVM, "-cp", f"{jars}/*", "org.gaul.s3proxy.Main", "--properties", str(properties)]
            process = ServerProcess("the S3 server", command, directory=place, log=log, ready=partial(_answers, port))
            try:
                process.start()
                break
            except SandboxError:
                taken = log.exists() and "Address already in use" in log.read_text(errors="replace")
                if attempt == _PORT_ATTEMPTS or not taken:
                    place.remove()
                    raise
                log.unlink()
        return cls(
            endpoint=f"http://{HOST}:{port}",
            access_key=_ACCESS_KEY,
            secret_key=secret,
            directory=place.path,
            log=log,
            _process=process,
            _directory=place,
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def client(self) -> S3Client:
        """A boto3 client of this server."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(s3={"addressing_style": "path"}),
        )

    def create_bucket(self, name: str) -> str:
        """Makes a bucket (3 characters or more) and returns its name."""
        self.client().create_bucket(Bucket=name)
        return name

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Stops it if it runs, and starts it again on the same port and data."""
        self._process.stop()
        self._process.start()

    def close(self) -> None:
        """Ends it and removes its temporary folder."""
        self._process.kill()
        self._directory.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_properties(directory: Path, port: int, secret: str) -> Path:
    buckets = directory / "buckets"
    buckets.mkdir(exist_ok=True)
    properties = directory / "s3proxy.properties"
    properties.touch(mode=0o600)
    properties.write_text(
        f"s3proxy.endpoint=http://{HOST}:{port}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={_ACCESS_KEY}\n"
        f"s3proxy.credential={secret}\n"
        "jclouds.provider=filesystem-nio2\n"
        f"jclouds.filesystem.basedir={buckets}\n"
    )
    return properties


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(f"HEAD / HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
