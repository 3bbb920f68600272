"""An S3 server (s3proxy on the file system) that checks signatures and does conditional writes."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from examples.sandbox.artifacts import S3PROXY, fetch, java
from examples.sandbox.process import HOST, Directory, Server, ServerProcess, launch

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
_ACCESS_KEY = "lockstep-sandbox"
# A small server: half a gigabyte of JVM beside Spark and two databases is enough.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, kw_only=True)
class S3Server(Server):
    """A running S3 server."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = REGION

    @classmethod
    def start(cls, directory: Path | str | None = None) -> Self:
        """A server that answers, with no bucket yet, or with those that `directory` already has."""
        jars = fetch(S3PROXY)
        place = Directory(directory, "s3")
        secret = secrets.token_hex(20)

        def process_on(port: int) -> ServerProcess:
            properties = _write_properties(place.path, port, secret)
            command = [java(), *_JVM, "-cp", f"{jars}/*", "org.gaul.s3proxy.Main", "--properties", str(properties)]
            return ServerProcess("the S3 server", command, directory=place, ready=partial(_answers, port))

        port, process = launch(place, process_on)
        return cls(
            endpoint=f"http://{HOST}:{port}", access_key=_ACCESS_KEY, secret_key=secret,
            _process=process, _directory=place,
        )  # fmt: skip

    @property
    def buckets(self) -> Path:
        """Where it keeps its objects: `<bucket>/<key>`."""
        return self._directory.path / "buckets"

    @property
    def keys(self) -> dict[str, str]:
        """The environment of a client of this server."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

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
