"""Names of servers and secrets in a pipeline file, `env:VAR` or `airflow:ID`, and the variables they are read from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

ENVIRONMENT = re.compile(r"^env:[A-Za-z_]\w*$")
"""A reference to an environment variable."""
_SECRET = re.compile(r"(?i)pass(word|wd|phrase)|secret|token|access[._]?key")


def secret_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a URL whose value is secret, by their names."""
    return {name: value for name, value in options.items() if _SECRET.search(name)}


def is_reference(value: str) -> bool:
    """Whether a value that may also be given itself stands for that of an environment variable or connection."""
    return value.startswith(("env:", "airflow:"))


def variable_of(reference: str) -> str:
    """The environment variable that holds what a reference names."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        return name
    return "LOCKSTEP_CONN_" + "".join(char if char.isalnum() else "_" for char in name).upper()


def same_variable(references: Iterable[str]) -> tuple[str, str, str] | None:
    """The first two different references that are read from one variable, and that variable."""
    seen: dict[str, str] = {}
    for reference in references:
        variable = variable_of(reference)
        other = seen.setdefault(variable, reference)
        if other != reference:
            return other, reference, variable
    return None
