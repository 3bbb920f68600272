"""The JSON records of a stage: manifests, starts, horizons, compacted ranges. Any other text is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_core.errors import DataAtRisk, LockstepError, Refused
from cdc_core.model.batch import MANIFEST_VERSION
from cdc_core.model.json_codec import UnknownVersion

_RESTORE = "restore the file from a backup of the stage, or use the version of Lockstep that wrote it"


@contextmanager
def reading_record(path: str, where: str, what: str, *, remedy: str = _RESTORE) -> Iterator[None]:
    """Around the reading of a record from its text. what: the kind of record. Raises DataAtRisk (stage.damaged) if the
    text is not one, Refused (install.version) if another version of Lockstep wrote it."""
    try:
        yield
    except UnknownVersion as error:
        newer = type(error.version) is int and error.version > MANIFEST_VERSION
        raise Refused(
            f"{path} cannot be read: {error}.",
            where=where,
            code="install.version",
            remedy="upgrade Lockstep on this host to the version that wrote the file"
            if newer
            else "read the stage with the version of Lockstep that wrote it, or give the pipeline an empty stage and "
            "meta",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, LockstepError) as error:
        raise DataAtRisk(
            f"{path} is not a readable {what}: {type(error).__name__}: {error}.",
            where=where,
            code="stage.damaged",
            remedy=remedy,
        ) from None
