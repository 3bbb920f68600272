"""The error for files of the stage that another version of Lockstep wrote."""

from __future__ import annotations

from cdc_core.errors import Refused
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.json_codec import UnknownVersion


def other_version(path: str, where: str, error: UnknownVersion) -> Refused:
    known = type(error.version) is int
    newer = known and error.version > MANIFEST_VERSION  # type: ignore[operator]
    remedy = "read the stage with the version of Lockstep that wrote it, or give the pipeline an empty stage and meta"
    return Refused(
        f"{path} cannot be read: {error}.",
        where=where,
        code="install.version",
        remedy="upgrade Lockstep on this host to the version that wrote the file" if newer else remedy,
    )
