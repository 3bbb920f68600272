"""A source whose tables are read beside the stream: by copies, verifications, and look-ups by key.

It must keep true that what is read is of the server whose log is staged, and that no chunk is read while copies are
paused or the throttle forbids it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cdc_core.config import Source
from cdc_core.errors import OtherServer, Paused, Refused
from cdc_core.model.position import Checkpoint
from cdc_core.model.windows import from_us
from cdc_core.mysql import connections
from cdc_core.mysql.connections import SafeConnection, Server
from cdc_core.operations.copy.throttle import Throttle
from cdc_core.operations.extract import hosts
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.source.host.failover import is_other_server
from cdc_core.source.host.server_facts import ServerFacts
from cdc_core.source.wire import replica_identity

WAIT_S = 1.0
"""How often a reader that must wait asks again."""


@dataclass(frozen=True, slots=True)
class SessionPair:
    """Two sessions at one server: one for read views, one to ask beside them."""

    reader: SafeConnection
    control: SafeConnection


@dataclass(frozen=True, slots=True)
class ReadSource:
    """address: leads to the server whose log is staged, and to no other. control: a session there, for questions."""

    opened: OpenPipeline
    config: Source
    address: Server
    control: SafeConnection
    server: ServerFacts
    throttle: Throttle

    @property
    def name(self) -> str:
        return self.config.name

    def capture(self) -> Capture:
        """The pipeline's rules, for one thread: the hasher of masked columns is for one."""
        pipeline = self.opened.pipeline
        return Capture(pipeline.tables, pipeline.routes, lower_case=self.server.lower_case)

    @contextmanager
    def sessions(self) -> Iterator[SessionPair]:
        """More sessions at the server."""
        with ExitStack() as stack:
            pair = []
            for _ in range(2):
                patience_s = self.config.read_timeout_s
                session = connections.connect(
                    self.address, where=self.name, read_timeout=patience_s, statement_timeout_s=None
                )
                stack.callback(session.close)
                pair.append(session)
            yield SessionPair(*pair)

    def staged(self) -> Checkpoint:
        """The end of what is staged, in the log of the server that is read.

        Raises Refused (source.not_extracted), RetryLater (source.other_server).
        """
        staged = self.opened.meta.positions.checkpoint(self.name)
        if staged is None:
            raise Refused(
                f"Nothing of the source {self.name!r} was extracted yet.",
                where=self.name,
                code="source.not_extracted",
                remedy="run `lockstep run` first",
            )
        if is_other_server(staged, self.server):
            raise OtherServer(
                f"Another server of {self.name!r} answers than the one that was read last.",
                where=self.name,
                remedy="run `lockstep extract` first, which moves to the new server; then try this again",
            )
        return staged

    def await_turn(
        self, control: SafeConnection, waiting: Callable[[str], None], stopped: threading.Event | None = None
    ) -> None:
        """Until a chunk may be read. waiting: told why not, again and again. stopped: ends the wait.

        Raises RetryLater (snapshot.paused), Refused (snapshot.throttle).
        """
        stopped = stopped or threading.Event()
        while not stopped.is_set():
            pause = self.opened.meta.copies.paused(self.name)
            if pause is not None:
                raise Paused(
                    f"{pause.holder} paused reading tables of the source {self.name!r} at "
                    f"{from_us(pause.since_us):%Y-%m-%d %H:%M:%S} UTC.",
                    where=self.name,
                    remedy="`lockstep snapshot PIPELINE --resume` lets it continue where it ended",
                )
            why = self.throttle.why(control)
            if not why:
                return
            waiting(why)
            stopped.wait(WAIT_S)


@contextmanager
def read_source(opened: OpenPipeline, name: str) -> Iterator[ReadSource]:
    """The server that the extractor reads. Raises as `ReadSource.staged`, and what hosts.connect raises."""
    meta = opened.meta
    config = opened.pipeline.source(name)
    with ExitStack() as stack:
        replica = replica_identity.replica_host(opened.name, name, meta.leases.identity(name))
        address, control, server = hosts.connect(config, meta.positions.checkpoint(name), replica)
        stack.callback(control.close)
        limits = opened.pipeline.snapshot.throttle
        throttle = stack.enter_context(Throttle(limits, source=name))
        source = ReadSource(opened, config, address, control, server, throttle)
        source.staged()
        yield source
