"""Libraries whose log says at INFO what concerns nobody who runs a pipeline."""

from __future__ import annotations

import logging

_LIBRARIES = ("alembic", "botocore", "great_expectations", "numba", "py4j", "urllib3")


def quiet_libraries() -> None:
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
