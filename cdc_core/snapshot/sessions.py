"""The sessions of a reader of copies, set so that values come as they are stored."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cdc_core import connections
from cdc_core.config import Source
from cdc_core.connections import SafeConnection, Server
from cdc_core.results import prepare_session
from cdc_core.snapshot.standby import Standby


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sessions at one server: one for read views, one to ask beside them."""

    reader: SafeConnection
    control: SafeConnection


class Sessions:
    """A reader's sessions. source: at the server whose log is staged. tables: at the server whose tables are read,
    which is a standby where the pipeline names one."""

    def __init__(self, config: Source, address: Server, standby: Standby | None) -> None:
        self._config = config
        self._address = address
        self._standby = standby

    def __enter__(self) -> Sessions:
        with ExitStack() as opened:
            self.source = self.tables = self._open(opened, self._address)
            if self._standby is not None:
                self.tables = self._open(opened, self._standby.address)
            self._close = opened.pop_all()
        return self

    @property
    def beside(self) -> bool:
        """Whether tables are read at a standby."""
        return self.tables is not self.source

    def _open(self, opened: ExitStack, address: Server) -> Pair:
        made = []
        for _ in range(2):
            one = connections.connect(
                address, where=self._config.name, read_timeout=self._config.read_timeout_s, statement_timeout_s=None
            )
            opened.callback(one.close)
            prepare_session(one)
            with one.cursor() as cursor:  # a key may be a date that strict modes do not compare with anything
                cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
            made.append(one)
        return Pair(*made)

    def __exit__(self, *_: object) -> None:
        self._close.close()
