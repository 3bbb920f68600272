"""A REST catalog of Iceberg tables in this process, on PyIceberg's own rules for commits, with faults to inject.

It keeps tables in a SQLite catalog. `transactions`: whether it offers `transactions/commit`, which changes all tables
or none. `faults`: what happens to the next commits: "refuse" answers 503 and does nothing; "forget" does it, and
answers 503 all the same; "401" and "403" are answered, and nothing is done.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

_CHANGES = {"requirements": TypeAdapter(tuple[TableRequirement, ...]), "updates": TypeAdapter(tuple[TableUpdate, ...])}
_TABLE = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces", "POST /v1/{prefix}/namespaces", "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables", "POST /v1/{prefix}/namespaces/{namespace}/tables",
    f"GET {_TABLE}", f"POST {_TABLE}", f"DELETE {_TABLE}",
]  # fmt: skip
_TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"


class RestCatalogServer:
    def __init__(self, folder: Path, *, transactions: bool = True) -> None:
        self.tables = SqlCatalog("inner", uri=f"sqlite:///{folder}/rest.db", warehouse=folder.as_uri())
        self.transactions, self.faults = transactions, deque[str]()
        self.commits = 0
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.tables.engine.dispose()

    def commit(self, changes: Sequence[tuple[tuple[str, ...], dict[str, Any]]]) -> list[dict[str, Any]]:
        """All changes or none."""
        with self.lock:
            self.commits += 1
            staged = []
            for name, change in changes:
                table = self.tables.load_table(name)
                given = {what: kind.validate_python(change[what]) for what, kind in _CHANGES.items()}
                staged.append(self.tables._update_and_stage_table(table, name, given["requirements"], given["updates"]))
            for made, (name, _) in zip(staged, changes, strict=True):
                self.tables._write_metadata(made.metadata, made.io, made.metadata_location)
                self._move(name, made.metadata_location)
            return [_shown(self.tables.load_table(name)) for name, _ in changes]

    def _move(self, name: tuple[str, ...], location: str) -> None:
        self.tables.drop_table(name)
        self.tables.register_table(name, location)


def _shown(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _handler(server: RestCatalogServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(self._get)

        def do_HEAD(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(self._post)

        def do_DELETE(self) -> None:
            self._answer(lambda parts: server.tables.drop_table(self._name(parts)))

        def _answer(self, work: Callable[[list[str]], Any]) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            self.body = json.loads(self.rfile.read(size)) if size else {}
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")][1:]
            try:
                status, answer = 200, work(parts)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                status, answer = 404, _error(404, type(error).__name__.replace("Error", "Exception"), error)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                status, answer = 409, _error(409, type(error).__name__, error)
            except _Fault as error:
                status, answer = error.status, _error(error.status, error.kind, error)
            text = b"" if answer is None else json.dumps(answer).encode()
            status = 204 if answer is None and status == 200 else status
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                with suppress(OSError):
                    self.wfile.write(text)

        def _name(self, parts: list[str]) -> tuple[str, ...]:
            return (*parts[1].split("\x1f"), parts[3])

        def _get(self, parts: list[str]) -> Any:
            if parts == ["config"]:
                offered = [*_ENDPOINTS, *([_TRANSACTIONS] if server.transactions else [])]
                return {"defaults": {}, "overrides": {}, "endpoints": offered}
            if parts == ["namespaces"]:
                return {"namespaces": [list(list_namespace) for list_namespace in server.tables.list_namespaces()]}
            if len(parts) == 2:
                namespace = tuple(parts[1].split("\x1f"))
                properties = server.tables.load_namespace_properties(namespace)
                return {"namespace": list(namespace), "properties": properties}
            return _shown(server.tables.load_table(self._name(parts)))

        def _post(self, parts: list[str]) -> Any:
            if parts == ["namespaces"]:
                server.tables.create_namespace(tuple(self.body["namespace"]))
                return {"namespace": self.body["namespace"], "properties": {}}
            if parts == ["transactions", "commit"]:
                self._commit([
                    ((*change["identifier"]["namespace"], change["identifier"]["name"]), change)
                    for change in self.body["table-changes"]
                ])  # fmt: skip
                return None
            if len(parts) == 3:
                name = (*parts[1].split("\x1f"), self.body["name"])
                schema = Schema.model_validate(self.body["schema"])
                location, properties = self.body.get("location"), self.body["properties"]
                return _shown(server.tables.create_table(name, schema, location, properties=properties))
            return self._commit([(self._name(parts), self.body)])[0]

        def _commit(self, changes: list[tuple[tuple[str, ...], dict[str, Any]]]) -> list[dict[str, Any]]:
            fault = server.faults.popleft() if server.faults else ""
            if fault in ("401", "403"):
                raise _Fault(int(fault), "NotAuthorizedException" if fault == "401" else "ForbiddenException")
            if fault == "refuse":
                raise _Fault(503, "ServiceUnavailableException")
            done = server.commit(changes)
            if fault == "forget":
                raise _Fault(503, "ServiceUnavailableException")
            return done

    return Handler


class _Fault(Exception):
    def __init__(self, status: int, kind: str) -> None:
        super().__init__(kind)
        self.status, self.kind = status, kind


def _error(code: int, kind: str, error: Exception) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": kind, "code": code}}
