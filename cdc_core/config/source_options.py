"""The key `sources`: the servers to read, and where to start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cdc_core.config.value_types import ConnectionRef, Model, Moment, Name
from cdc_core.model.position import MAX_TIMELINE


class StartPosition(Model):
    """A position in the log. The first event to read starts at `offset` in `file`."""

    file: str = Field(description="as SHOW BINARY LOGS prints it")
    offset: int = Field(4, ge=4, description="where an event starts, as SHOW BINLOG EVENTS prints it")
    empty: tuple[str, ...] = Field(
        (),
        description="tables (`database.table`) that had no rows at this position, so that their history is "
        "complete; `lockstep init` lists those that it has proven to be empty",
    )


class StartConfig(Model):
    """Where reading starts if nothing is stored for the source yet. Give one key."""

    position: StartPosition | None = Field(None, description="a position in the log")
    gtid: str | None = Field(None, description="a GTID set; every transaction outside it is read")
    timestamp: Moment | None = Field(
        None,
        description="ISO 8601 with a time zone: the first transaction at or after it. On MariaDB the time is "
        "when a transaction's last statement began, so go back by the longest one",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> StartConfig:
        if sum(value is not None for value in (self.position, self.gtid, self.timestamp)) != 1:
            raise ValueError("give exactly one of position, gtid, timestamp")
        return self


class Source(Model):
    """One server, or a primary and its standbys, of which Lockstep reads one."""

    name: Name = Field(description="part of paths, leases and row versions: never change it")
    connection: ConnectionRef | Annotated[tuple[ConnectionRef, ...], Field(min_length=1)] = Field(
        description="env:VARIABLE with a URL mysql://user:password@host:port, airflow:CONNECTION_ID, or a list "
        "of them for a primary and its standbys. Lockstep stays with the server that it read last, "
        "and reads the first that answers if that one is gone"
    )
    server_id: int = Field(ge=1, le=2**32 - 1, description="Lockstep's ID as a replica; no other replica may have it")
    start: Literal["earliest", "latest"] | StartConfig = Field(
        "latest",
        description="where to start if nothing is stored yet: earliest, latest (the moment of the first "
        "extract), or a key of `start`",
    )
    heartbeat_s: float = Field(5.0, gt=0, le=600, description="interval of heartbeats while the server is idle")
    read_timeout_s: float = Field(
        30.0, gt=0, description="the connection counts as lost after this time without data or a heartbeat"
    )

    reconnect_s: float = Field(
        60.0,
        ge=0,
        description="how long to reconnect before the next server is tried, or the task fails and is retried",
    )
    rewind_s: float = Field(
        60.0,
        ge=0,
        description="after a failover without GTIDs, reading starts this long before the last change that was read",
    )
    timeline: int = Field(
        0,
        ge=0,
        le=MAX_TIMELINE,
        description="number of the first timeline; if a target has rows of this source from another stage, one "
        "more than theirs",
    )

    @property
    def connections(self) -> tuple[str, ...]:
        """The servers, in order."""
        return (self.connection,) if isinstance(self.connection, str) else self.connection

    @property
    def start_text(self) -> str:
        """`start` as one line; equal for spellings that mean the same."""
        if isinstance(self.start, str):
            return self.start
        if self.start.position is not None:
            return f"{self.start.position.file}:{self.start.position.offset}"
        if self.start.timestamp is not None:
            return f"timestamp {self.start.timestamp}"
        assert self.start.gtid is not None
        return f"gtid {''.join(self.start.gtid.split()).lower()}"

    @model_validator(mode="after")
    def _timeout_above_heartbeat(self) -> Source:
        if self.read_timeout_s < 2 * self.heartbeat_s:
            raise ValueError("read_timeout_s must be at least twice heartbeat_s")
        return self
