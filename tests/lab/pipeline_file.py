"""The text of a pipeline file, of which a test says only what it is about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cdc_core.config import Pipeline, parse

NOWHERE = Path("/nowhere")
"""The folder of a pipeline that nothing stages by."""

Section = str | Mapping[str, Any]
"""Keys of a section of the file: a mapping, or YAML as between braces, such as "lease_s: 5, ring_mib: 1"."""

SERVER_IDS = itertools.count(4711)
"""Each pipeline has its own: a server may see the replica of the previous test for a moment."""


JOINED = r"[{match: '.*[.](all|part)_.*', to: '\1'}, {match: '.*[.](.*)', to: '\1'}]"
"""Routes: the tables all_* are staged as `all`, those of part_* as `part`."""


def keys(section: Section) -> dict[str, Any]:
    return dict(yaml.safe_load(f"{{{section}}}") if isinstance(section, str) else section)


def pipeline_document(folder: Path, database: str, *, source: Section = "", **sections: Any) -> dict[str, Any]:
    """Source `shop` at env:SOURCE captures all tables of the database, each staged under its own name. Stage and meta
    are in the folder.

    source: keys of the source. sections: keys of a section, added to those it has here; a section that is a list
    replaces the one here, as YAML or as values.
    """
    document: dict[str, Any] = {
        "pipeline": "shop",
        "sources": [{"name": "shop", "connection": "env:SOURCE", "server_id": next(SERVER_IDS), "heartbeat_s": 1}],
        "tables": {"include": [rf"{database}\..*"]},
        "routes": [{"match": r".*\.(.*)", "to": r"\1"}],
        "stage": {"uri": (folder / "stage").as_uri()},
        "meta": {"url": f"sqlite:///{folder}/meta.db"},
    }
    return changed(document, source=source, **sections)


def changed(document: Mapping[str, Any], *, source: Section = "", **sections: Any) -> dict[str, Any]:
    """The document with other keys, as `pipeline_document` takes them."""
    made = dict(document)
    made["sources"] = [{**entry, **keys(source)} for entry in made["sources"]]
    for name, section in sections.items():
        value = yaml.safe_load(section) if isinstance(section, str) and section.lstrip().startswith("[") else section
        if name in ("pipeline", "schedule") or isinstance(value, list):
            made[name] = value
        else:
            made[name] = {**made.get(name, {}), **keys(value)}
    return made


def target(name: str, server: str, tables: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Of a section `targets`. server: such as env:TARGET."""
    return {"name": name, "connections": [server], "tables": dict(tables), **keys}


def sharded(name: str, server: str, table: str, database: str, **sharding: Any) -> dict[str, Any]:
    """A target that makes two tables `TABLE_0` and `TABLE_1` by id of the database, at a server such as env:TARGET."""
    split = {"key": "id", "databases": 1, "tables": 2, **sharding}
    tables = {table: {"database": database, "table": f"{table}_{{t}}", "sharding": split}}
    return target(name, server, tables, on_missing_table="create")


def pipeline_text(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, width=200)


def made_pipeline(folder: Path, database: str, **sections: Any) -> Pipeline:
    """sections: as of `pipeline_document`."""
    return parse(pipeline_text(pipeline_document(folder, database, **sections)), where="test")


def write_pipeline(folder: Path, database: str, *, pipeline: str = "shop", **sections: Any) -> Path:
    """The pipeline's file, in the folder."""
    file = folder / f"{pipeline}.yaml"
    file.write_text(pipeline_text(pipeline_document(folder, database, pipeline=pipeline, **sections)))
    return file
