"""A pipeline on real servers, whose operations a test calls: its file, stage and meta database are in one folder."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_core.config import Pipeline, parse
from cdc_core.errors import Refused
from cdc_core.meta import Meta, meta_schema
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How
from cdc_core.model.position import Checkpoint
from cdc_core.operations.extract import Extractor
from cdc_core.operations.extract.extractor import DrainResult
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import manifest as manifests
from cdc_core.stage.staged_coverage import coverage_of
from cdc_core.stage.stores import open_store
from tests.lab.opened import opened
from tests.lab.origin import Origin
from tests.lab.pipeline_file import changed, keys, pipeline_document, pipeline_text
from tests.lab.shell import export
from tests.lab.staged_tables import changes, table_state
from tests.lab.waiting import wait_until


class Lab:
    """Source `shop` captures the origin, by default from where its server is now.

    sections: as of `pipeline_document`.
    """

    def __init__(self, folder: Path, origin: Origin, **sections: Any) -> None:
        self.folder, self.origin = folder, origin
        folder.mkdir(exist_ok=True)
        self.environ = {"SOURCE": origin.sql.url, "SALT": "salt"}
        export(self.environ)
        source = keys(sections.pop("source", ""))
        if "start" not in source:
            source |= self._here
        self._write(pipeline_document(folder, origin.name, source=source, **sections))
        self.store = open_store(self.pipeline.stage.uri)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "meta" in self.__dict__:
            self.meta.close()

    def change(self, **sections: Any) -> None:
        """Other keys in the pipeline file, as of `pipeline_document`."""
        self._write(changed(self._document, **sections))

    def begin_now(self) -> None:
        """Begins where the server is now, if nothing was read yet."""
        self.change(source=self._here)

    @property
    def _here(self) -> dict[str, Any]:
        # In a file of its own: whoever begins at a position reads the file up to there.
        self.origin.execute_on_server("FLUSH BINARY LOGS")
        if self.origin.mariadb:  # whose last event about the former file comes once that is in the engine's log
            self.origin.execute_on_server("FLUSH ENGINE LOGS")
            wait_until(self._checkpointed, pause_s=0.01)
        end = self.origin.end().position
        return {"start": {"position": {"file": end.file, "offset": end.offset}}}

    def _checkpointed(self) -> bool:
        file = self.origin.end().position.file
        events = self.origin.sql.run(f"SHOW BINLOG EVENTS IN '{file}'")
        return any(event[2] == "Binlog_checkpoint" and event[5] == file for event in events)

    def _write(self, document: dict[str, Any]) -> None:
        self._document = document
        self.file = self.folder / f"{document['pipeline']}.yaml"
        self.file.write_text(pipeline_text(document))
        self.pipeline: Pipeline = parse(self.file.read_text(), where="test")

    def lose_meta(self) -> None:
        """The meta database is gone, as in an accident."""
        self.__exit__()
        self.__dict__.pop("meta", None)
        (self.folder / "meta.db").unlink()

    @property
    def lease_expires_us(self) -> int:
        row = self.meta._database.read(lambda connection: self.meta.leases.within(connection).find("shop"))
        return int(row.expires_us)

    def expire_leases(self) -> None:
        """As once the time of whoever was killed is over."""
        ended = meta_schema.lease.update().values(expires_us=0)
        self.meta._database.write(lambda connection: connection.execute(ended))

    def rebuild(self) -> int:
        """Meta is made again from the chain; how many batches it lacked."""
        lease, added = self.meta.rebuild(self.meta.leases.acquire("shop", "test", 60), self.chain)
        self.meta.leases.release(lease)
        return added

    @cached_property
    def meta(self) -> Meta:
        return Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)

    @property
    def opened(self) -> OpenPipeline:
        return opened(self.pipeline, self.meta, self.environ, store=self.store)

    def extractor(self, *, holder: str = "me", **options: Any) -> Extractor:
        return Extractor(replace(self.opened, holder=holder), "shop", **options)

    def extract(self, **options: Any) -> DrainResult:
        """All that is committed up to now."""
        with self.extractor(**options) as extractor:
            result = extractor.drain()
        assert result.done
        return result

    def drain(self, **options: Any) -> dict[str, How]:
        """Extracts; returns the coverage."""
        self.extract(**options)
        return self.coverage

    @property
    def chain(self) -> list[Manifest]:
        return list(manifests.chain(self.store, "shop"))

    @property
    def checkpoint(self) -> Checkpoint:
        return self.meta.positions.checkpoint("shop")

    @property
    def notes(self) -> list[str]:
        return [note for batch in self.chain for note in batch.notes]

    @property
    def coverage(self) -> dict[str, How]:
        """How each table is covered, by its name without the database. Stage and meta agree."""
        covered = coverage_of(self.store, "shop", self.chain)
        assert dict(self.meta.coverages.find("shop").tables) == covered or not self.chain
        return {table.partition(".")[2]: coverage.how for table, coverage in covered.items()}

    def changes(self, table: str = "t") -> pa.Table:
        """Every staged change in order. A change that was staged twice appears twice."""
        rows = changes(self.store, self.chain, table)
        order = pc.sort_indices(rows, sort_keys=[("_cdc_seq", "ascending"), ("_cdc_row", "ascending")])
        return rows.take(order)

    def changed_ids(self) -> list[int]:
        return self.changes()["id"].to_pylist()

    def state(self, table: str = "t", *columns: str, **options: Any) -> list[tuple[Any, ...]]:
        """The table's rows, in the order of its key."""
        rows = table_state(self.store, self.chain, table, **options)
        return [tuple(row.values()) for row in rows.select(columns).to_pylist()]

    def ids(self, table: str = "t", **options: Any) -> list[int]:
        """The ids of the table's rows; none if nothing of it is staged."""
        if not any(part.table == table for batch in self.chain for part in batch.parts):
            return []
        return [number for (number,) in self.state(table, "id", **options)]

    def refuses(self, table: str, **options: Any) -> str:
        """Why the table has no state."""
        with pytest.raises(Refused) as caught:
            table_state(self.store, self.chain, table, **options)
        assert caught.value.code == "stage.partial"
        return caught.value.what

    def assert_intact(self) -> None:
        """The chain and its files are whole, and meta has recorded all of it."""
        chain = self.chain
        assert manifests.verify(self.store, "shop", deep=True) == []
        assert self.checkpoint.position == chain[-1].end.position
        assert {batch.batch_id for batch in self.meta.batches.find("shop")} == {batch.batch_id for batch in chain}
