"""A pipeline from a real server to a stage, extracted by calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc_core.config import Pipeline, parse
from cdc_core.errors import Refused
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How
from cdc_core.operations.extract import Extractor
from cdc_core.source.host import source_server as server
from cdc_core.stage.manifest import chain
from cdc_core.stage.stage_reader import table_state
from cdc_core.stage.staged_coverage import coverage_of
from cdc_core.stage.stores import open_store
from tests.integration.source_origin import Origin
from tests.opened import opened as open_for


class Line:
    """A pipeline of one source on a database of its own, that begins where the server is now."""

    def __init__(self, origin: Origin, folder: Path, more: str = "", tables: str = "") -> None:
        self.origin, self.folder = origin, folder
        end = server.end_position(origin.control, 0)
        self._text = f"""
            pipeline: shop
            sources:
              - name: shop
                connection: env:SOURCE
                server_id: 8823
                start: {{position: {{file: {end.file}, offset: {end.offset}}}}}
                heartbeat_s: 1
            tables: {{{tables or f"include: ['{origin.name}[.].*']"} {more}}}
            routes: [{{match: '{origin.name}[.](all|part)_.*', to: '\\1'}}, {{match: '.*[.](.*)', to: '\\1'}}]
            stage: {{uri: {(folder / "stage").as_uri()}}}
            meta: {{url: "sqlite:///{folder}/meta.db"}}
            """
        self.pipeline: Pipeline = parse(self._text, where="test")
        self.store = open_store(self.pipeline.stage.uri)

    def again(self, **changed: str) -> None:
        """The pipeline file with some texts replaced."""
        for old, new in changed.items():
            self._text = self._text.replace(old, new)
        self.pipeline = parse(self._text, where="test")

    @property
    def text(self) -> str:
        """The pipeline file."""
        return self._text

    def begin_now(self) -> None:
        """Begins where the server is now, if nothing was read yet."""
        end = server.end_position(self.origin.control, 0)
        self._text = re.sub(r"position: \{.*?\}", f"position: {{file: {end.file}, offset: {end.offset}}}", self._text)
        self.again()

    def drain(self) -> dict[str, How]:
        self.extract()
        return self.coverage

    def extract(self) -> None:
        with Meta.open(self.pipeline.meta.url, self.pipeline.pipeline) as meta:
            environ = {"SOURCE": self.origin.sql.url, "SALT": "salt"}
            opened = Extractor(open_for(self.pipeline, meta, environ), "shop")
            with opened as extractor:
                extractor.drain()

    @property
    def chain(self) -> list[Manifest]:
        return list(chain(self.store, "shop"))

    @property
    def coverage(self) -> dict[str, How]:
        """Of each table, without its database; equal in stage and meta."""
        found = coverage_of(self.store, "shop", self.chain)
        with Meta.open(self.pipeline.meta.url, self.pipeline.pipeline) as meta:
            assert dict(meta.coverages.find("shop").tables) == found or not self.chain
        return {table.partition(".")[2]: one.how for table, one in found.items()}

    def ids(self, table: str, **options: object) -> list[int]:
        return table_state(self.store, self.chain, table, **options).column("id").to_pylist()  # type: ignore[arg-type]

    def refuses(self, table: str, **options: object) -> str:
        with pytest.raises(Refused) as caught:
            table_state(self.store, self.chain, table, **options)  # type: ignore[arg-type]
        assert caught.value.code == "stage.partial"
        return caught.value.what
