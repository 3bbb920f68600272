"""What the server of a stream says now: its definitions, defaults and foreign keys, and where its log ends.

On an ordinary connection beside the stream, which is opened when it is first needed, and again after it was closed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pymysql

from cdc_core.config import Source
from cdc_core.errors import NeverCaptured
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.mysql import connections
from cdc_core.source.host.server_facts import end_position, now_us
from cdc_core.source.schemas.captured_definitions import table_schema
from cdc_core.source.schemas.cascades import Captures, require_seen_cascades
from cdc_core.source.schemas.column_defaults import column_defaults
from cdc_core.source.schemas.foreign_keys import ForeignKey, foreign_keys
from cdc_core.source.sql.capture_policy import CapturePolicy

log = logging.getLogger(__name__)


class SourceAnswers:
    """timeline: of the stream, for positions. Each method raises what a query raises."""

    def __init__(self, source: Source, server: connections.Server, timeline: int) -> None:
        self._source = source
        self._server = server
        self._timeline = timeline
        self._open: pymysql.Connection | None = None

    def connection(self) -> pymysql.Connection:
        if self._open is None:
            self._open = connections.connect(
                self._server, where=self._source.name, read_timeout=self._source.read_timeout_s
            )
        return self._open

    @property
    def connected(self) -> bool:
        return self._open is not None

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def definition(self, database: str, table: str) -> TableSchema | None:
        return table_schema(self.connection(), database, table)

    def definition_if_captured(self, database: str, table: str) -> TableSchema | None:
        """Like `definition`; None for a table that cannot be captured."""
        try:
            return self.definition(database, table)
        except NeverCaptured:
            return None

    def defaults(self, table: TableSchema) -> Mapping[str, str | None]:
        return column_defaults(self.connection(), table)

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        return foreign_keys(self.connection())

    def now_us(self) -> int:
        return now_us(self.connection())

    def end_of_log(self) -> Position:
        return end_position(self.connection(), self._timeline)

    def require_seen_cascades(self, captures: Captures, policy: CapturePolicy) -> None:
        """For a log that turned out to have rows of a server that does not log what foreign keys change."""
        name = self._source.name
        log.warning("%s: the log has rows of a server that does not log what foreign keys change", name)
        require_seen_cascades(self.connection(), captures, source=name, policy=policy, logged=False)
