"""The sessions with which tables of a source are read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cdc_core.config import Source
from cdc_core.mysql import connections
from cdc_core.mysql.connections import SafeConnection, Server
from cdc_core.operations.copy.standby import Standby


@dataclass(frozen=True, slots=True)
class SessionPair:
    """Two sessions at one server: one for read views, one to ask beside them."""

    reader: SafeConnection
    control: SafeConnection


def open_pair(opened: ExitStack, config: Source, address: Server) -> SessionPair:
    """Sessions that are closed with `opened`."""
    made = []
    for _ in range(2):
        one = connections.connect(
            address, where=config.name, read_timeout=config.read_timeout_s, statement_timeout_s=None
        )
        opened.callback(one.close)
        made.append(one)
    return SessionPair(*made)


class CopySessions:
    """A reader's sessions. source: at the server whose log is staged. tables: at the server whose tables are read,
    which is a standby where the pipeline names one."""

    def __init__(self, config: Source, address: Server, standby: Standby | None) -> None:
        self._config = config
        self._address = address
        self._standby = standby

    def __enter__(self) -> CopySessions:
        with ExitStack() as opened:
            self.source = self.tables = open_pair(opened, self._config, self._address)
            if self._standby is not None:
                self.tables = open_pair(opened, self._config, self._standby.address)
            self._close = opened.pop_all()
        return self

    @property
    def beside(self) -> bool:
        """Whether tables are read at a standby."""
        return self.tables is not self.source

    def __exit__(self, *_: object) -> None:
        self._close.close()
