"""Fetches the jars with which Spark reads and writes a bucket, using the Ivy that pyspark includes.

Requires only Java and pyspark. The folder appears whole or not at all, and is fetched once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cdc_core.apply.jobs import S3_EXCLUDED, S3_PACKAGES, s3_jars
from cdc_core.errors import Refused, RetryLater
from cdc_core.extras import require

SIZE_MB = 14


def fetch_s3_jars() -> tuple[Path, bool]:
    """(The folder with the jars; whether they had to be fetched.)

    Raises UsageError (install.missing_extra), Refused (spark.no_java, spark.no_ivy), RetryLater (spark.fetch).
    """
    require("spark", by="lockstep spark fetch-jars")
    folder = s3_jars()
    if any(folder.glob("*.jar")):
        return folder, False
    command = [_java(), "-jar", str(_ivy())]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".spark-s3-", dir=folder.parent) as scratch:
            made = Path(scratch) / "jars"
            made.mkdir()
            _retrieve(command, Path(scratch), made)
            made.chmod(0o755)
            try:
                made.rename(folder)
            except OSError:
                if not any(folder.glob("*.jar")):  # another process may have fetched them meanwhile
                    raise
    except OSError as error:
        raise RetryLater(
            f"Spark's jars cannot be kept: {error.strerror or error}.",
            where=str(folder),
            code="spark.fetch",
            remedy="let the account write there, free some space, or set LOCKSTEP_CACHE to another folder",
        ) from error
    return folder, True


def _retrieve(command: list[str], scratch: Path, into: Path) -> None:
    needed = "".join(
        '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'.format(*one.split(":"))
        for one in S3_PACKAGES
    )
    excluded = "".join('<exclude org="{}" module="{}"/>'.format(*one.split(":")) for one in S3_EXCLUDED)
    asked = scratch / "ivy.xml"
    asked.write_text(
        '<ivy-module version="2.0"><info organisation="lockstep" module="spark-s3"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{needed}{excluded}</dependencies></ivy-module>"
    )
    # Ivy locks nothing in its cache: with a cache each, two fetches can run at once.
    options = ["-cache", str(scratch / "ivy"), "-confs", "default", "-ivy", str(asked)]
    options += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    _, name, version = S3_PACKAGES[0].split(":")
    if done.returncode != 0 or not (into / f"{name}-{version}.jar").exists():
        said = [line.strip()[:200] for line in (done.stdout + done.stderr).splitlines() if line.strip(" .:-")]
        raise RetryLater(
            f"Spark's jars for buckets could not be fetched. Ivy's last lines: {' | '.join(said[-4:])}",
            where=S3_PACKAGES[0],
            code="spark.fetch",
            remedy="check the network; Java takes a proxy from JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=… "
            "-Dhttps.proxyPort=…. Or copy the folder from a machine that has it",
        )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise Refused(
            "Java was not found.",
            where=f"JAVA_HOME={home}" if home else "PATH",
            code="spark.no_java",
            remedy="install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to it",
        )
    return found


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise Refused(
            "The pyspark of this Python has no jars (pyspark-client, for one, has the same files without them).",
            code="spark.no_ivy",
            remedy="pip install 'lockstep[spark]' in an environment of its own, or run the command where the Airflow "
            "workers' packages are installed",
        )
    return jars[0]
