"""What Airflow's OpenLineage provider emits, by its own file transport; each event is checked against the published
schemas."""

from __future__ import annotations

import inspect
import json
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import attr
from openlineage.client import facet_v2
from openlineage.client.event_v2 import RunEvent


def facet_classes() -> dict[str, type[Any]]:
    """The classes that the client generates from the published schemas, by the URL that a facet names."""
    found = {}
    for _, module in inspect.getmembers(facet_v2, inspect.ismodule):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, facet_v2.BaseFacet):
                found[kind._get_schema()] = kind
    return found


FACETS = facet_classes()
BASES = {
    facet_v2.DatasetFacet, facet_v2.InputDatasetFacet, facet_v2.OutputDatasetFacet, facet_v2.JobFacet, facet_v2.RunFacet
}  # fmt: skip


def require(value: Any, wanted: Any, where: str) -> None:
    """A value has the type that the client generates from a published schema: each required field, no unknown one."""
    if wanted is Any:
        return
    kind, parts = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (UnionType, Union):
        left = [part for part in parts if part is not type(None)]
        assert value is not None or len(left) < len(parts), where
        if value is not None:
            (event,) = left
            require(value, event, where)
    elif kind is list:
        assert isinstance(value, list), where
        for number, event in enumerate(value):
            require(event, parts[0], f"{where}[{number}]")
    elif kind is dict:
        assert isinstance(value, dict), where
        for name, event in value.items():
            require(event, parts[1], f"{where}.{name}")
    elif attr.has(kind):
        if kind in BASES:
            kind = FACETS.get(value["_schemaURL"], kind)
            if kind in BASES:  # facets of the provider's own, with any fields
                assert where.startswith(("event.run.", "event.job.")), where
                return
        fields = {field.name: field for field in attr.fields(attr.resolve_types(kind))}
        needed = {name for name, field in fields.items() if field.default is attr.NOTHING}
        assert needed <= value.keys() <= fields.keys() | {"_producer", "_schemaURL"}, (where, value)
        for name in value.keys() & fields.keys():
            require(value[name], fields[name].type, f"{where}.{name}")
    elif issubclass(kind, Enum):
        assert value in [member.value for member in kind], where
    else:
        assert isinstance(value, kind), (where, value)
        assert isinstance(value, bool) == (kind is bool), (where, value)


def emitting(file: Path) -> dict[str, str]:
    """Variables by which Airflow's provider writes its events to a file.

    `airflow dags test` has Airflow's API in the same process, whose threads a fork of the provider's may hang on. For
    the event of the whole DAG the provider forks anyway: the tests do not wait for that one.
    """
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    return {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD": "True",
    }


def completed(file: Path) -> dict[str, Any]:
    """The events of tasks that have succeeded, by job."""
    found = {}
    for text in file.read_text().splitlines(keepends=True) if file.exists() else ():
        if not text.endswith("\n"):
            break  # it is being written
        event = json.loads(text)
        require(event, RunEvent, "event")
        if event["eventType"] == "COMPLETE":
            found[event["job"]["name"]] = event
    return found
