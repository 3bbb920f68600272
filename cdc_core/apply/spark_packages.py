"""The packages that Lockstep's code imports on Spark's executors, and an archive of them for executors that lack them.

The archive has the files that this Python has installed, with what those packages require in turn. It serves executors
with the same Python minor version on the same kind of machine. `spark.archives` unpacks it there; Lockstep's own code
travels by itself (spark_jobs/shipped_code.py), and pyspark comes from the executors' Spark.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from cdc_core.errors import Refused

MODULES = {
    "cryptography": "cryptography",
    "numba": "numba",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pymysql": "PyMySQL",
    "sqlalchemy": "SQLAlchemy",
    "yaml": "PyYAML",
}
"""What the jobs import on executors, and the package that has it."""
BUCKET_MODULES = {"boto3": "boto3"}
"""What they import in addition if the stage is in a bucket."""


def required() -> list[Distribution]:
    """The installed packages that executors need, with what these require; boto3's only if it is installed here."""
    from packaging.requirements import Requirement  # not on executors, which read MODULES
    from packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    pending = [*MODULES.values(), *BUCKET_MODULES.values()]
    while pending:
        name = pending.pop()
        if canonicalize_name(name) in found:
            continue
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # optional: what is missing here cannot be needed there
        found[canonicalize_name(name)] = one
        for text in one.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return [found[name] for name in sorted(found)]


def pack(archive: Path) -> list[str]:
    """Writes the archive, whole or not at all; the packages in it with their versions.

    Raises Refused (spark.pack).
    """
    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise Refused(
            f"{archive.name} does not end in .tar.gz, by which Spark tells how to unpack it.",
            where=str(archive),
            code="spark.pack",
            remedy="give the file a name that ends in .tar.gz",
        )
    packages = required()
    try:
        with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=".", suffix=".tar.gz", delete=False) as scratch:
            made = Path(scratch.name)
            try:
                with tarfile.open(fileobj=scratch, mode="w:gz", compresslevel=1) as tar:
                    for one in packages:
                        for name, path in files_of(one):
                            tar.add(path, name, recursive=False)
                made.chmod(0o644)
                made.replace(archive)
            except BaseException:
                made.unlink()
                raise
    except OSError as error:
        raise Refused(
            f"The archive cannot be written: {error.strerror or error}.",
            where=str(archive),
            code="spark.pack",
            remedy="name a file in a folder that this account may write to, with about 300 MB free",
        ) from error
    return [f"{one.metadata['Name']} {one.version}" for one in packages]


def files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Name below site-packages and path of each installed file; not of scripts, which lie elsewhere."""
    for file in package.files or ():
        name = PurePosixPath(file)
        path = Path(str(package.locate_file(file)))
        if ".." not in name.parts and "__pycache__" not in name.parts and path.is_file():
            yield str(name), path
