"""The requirements for a source server: one function per rule, which raises the error of that rule.

`lockstep check` calls each and shows what it raised; the extractor calls `require_all` when it connects, which stops at
the first, so both refuse by the same functions. ADVICE lists what is not refused but worth a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc_core.config import Source
from cdc_core.errors import Refused
from cdc_core.model.position import Checkpoint
from cdc_core.source.host.server_facts import (
    BinlogFile,
    ServerFacts,
    binlog_files,
    end_position,
    facts,
    gtid_executed,
    log_off,
    now_us,
)
from cdc_core.source.wire import replica_identity

__all__ = [
    "ADVICE",
    "PREFLIGHT",
    "Advice",
    "BinlogFile",
    "ServerFacts",
    "binlog_files",
    "end_position",
    "facts",
    "gtid_executed",
    "now_us",
    "require_all",
]


def require_log(server: ServerFacts, source: Source) -> None:
    """Refused connection.setting."""
    if not server.log_bin:
        raise log_off()
    if server.log_engine:
        raise Refused(
            f"The server writes its binary log into {server.log_engine}: such a log has no files and offsets, by which "
            "Lockstep knows every change.",
            where="source",
            code="connection.setting",
            remedy="start the source without binlog_storage_engine",
        )


def require_grants(server: ServerFacts, source: Source) -> None:
    """Refused connection.grant."""
    grants = server.grants
    missing = []
    if not grants.has("REPLICATION SLAVE", "REPLICATION REPLICA"):
        missing.append("REPLICATION SLAVE")
    if not grants.has("REPLICATION CLIENT", "BINLOG MONITOR", "SUPER"):
        missing.append("BINLOG MONITOR" if server.mariadb else "REPLICATION CLIENT")
    if not grants.select_on:
        missing.append("SELECT")
    if missing:
        account = ", ".join(source.connections)
        raise Refused(
            f"The account lacks {', '.join(missing)}.",
            where=source.name,
            code="connection.grant",
            remedy=f"on the source: GRANT {', '.join(missing)} ON *.* TO the account of {account}",
        )


def require_row_format(server: ServerFacts, source: Source) -> None:
    """Refused connection.setting."""
    if server.binlog_format != "ROW":
        raise Refused(
            f"binlog_format is {server.binlog_format}, which logs statements without their rows.",
            where=source.name,
            code="connection.setting",
            remedy="SET GLOBAL binlog_format = 'ROW' on the source, wait until old sessions have ended, and start "
            "from a position after that",
        )


def require_unfiltered_log(server: ServerFacts, source: Source) -> None:
    """Refused connection.setting."""
    if server.filters:
        raise Refused(
            f"The server leaves databases out of its log: {'; '.join(server.filters)}.",
            where=source.name,
            code="connection.setting",
            remedy="remove binlog-do-db and binlog-ignore-db from the server's options, or read another server",
        )


def require_replicated_changes_logged(server: ServerFacts, source: Source) -> None:
    """Refused connection.setting."""
    if server.is_replica and not server.logs_replicated:
        raise Refused(
            "The server is a replica and does not log the changes that it replicates (log_replica_updates is OFF).",
            where=source.name,
            code="connection.setting",
            remedy="start it with log_slave_updates (MySQL: log_replica_updates) = ON, or read its primary",
        )


def require_free_server_id(server: ServerFacts, source: Source) -> None:
    """Refused source.server_id_taken: the server would end each of the two streams in turn, again and again.

    What the extractor itself has registered must be left out of the facts (ServerFacts.without_replica).
    """
    if source.server_id == server.server_id:
        raise replica_identity.taken(source.server_id, "the server itself", source.name)
    for replica in server.replicas:
        if replica.server_id == source.server_id:
            owner = f"the replica {replica.host or '(without a host name)'}:{replica.port}"
            raise replica_identity.taken(source.server_id, owner, source.name)


Requirement = Callable[[ServerFacts, Source], None]

PREFLIGHT: tuple[tuple[str, Requirement], ...] = (
    ("binary log", require_log),
    ("grants", require_grants),
    ("binlog_format", require_row_format),
    ("log filters", require_unfiltered_log),
    ("replicated changes", require_replicated_changes_logged),
    ("server_id", require_free_server_id),
)


def require_all(server: ServerFacts, source: Source) -> None:
    """Raises the error of the first broken rule."""
    for _, requirement in PREFLIGHT:
        requirement(server, source)


@dataclass(frozen=True, slots=True)
class Advice:
    """What is not refused but worth a warning, and what to do about it; as a text, both."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


def advise_row_metadata(server: ServerFacts) -> Advice | None:
    if server.row_metadata == "FULL":
        return None
    return Advice(
        f"binlog_row_metadata is {server.row_metadata or 'not known to this server'}: names and types come from "
        "INFORMATION_SCHEMA, and rows between two ALTERs that Lockstep did not read in time stop the source",
        "SET GLOBAL binlog_row_metadata = 'FULL'",
    )


def advise_row_image(server: ServerFacts) -> Advice | None:
    if server.row_image == "FULL":
        return None
    known = (
        "an INSERT of defaults cannot be read across an ALTER, a change of a primary key stops the run, and so does an "
        "update of a row that the target does not have"
    )
    if server.mariadb:
        known += "; MariaDB logs a REPLACE of an existing row without the columns that it reset to defaults"
    return Advice(f"binlog_row_image is {server.row_image}: {known}", "SET GLOBAL binlog_row_image = 'FULL'")


def advise_retention(server: ServerFacts) -> Advice | None:
    if server.retention_s == 0 or server.retention_s >= 86_400:
        return None
    return Advice(
        f"The server keeps its log for only {server.retention_s / 3600:.1f} hours: a pipeline that is stopped for "
        "longer must copy all tables again",
        f"{server.retained_by}: days, not hours",
    )


def advise_checksum(server: ServerFacts) -> Advice | None:
    if server.checksum == "CRC32":
        return None
    return Advice(
        "binlog_checksum is off: a damaged log is detected late or never", "SET GLOBAL binlog_checksum = 'CRC32'"
    )


def advise_gtid_order(server: ServerFacts, source: Source) -> Advice | None:
    """Order keys and positions in one server's log do not depend on GTIDs."""
    if server.gtid_strict or len(source.connections) == 1:
        return None
    return Advice(
        "gtid_strict_mode is OFF: a server can log transactions of a domain in another order than their numbers, as "
        "after a write at a replica. A failover may take such a write for read, so that it is missing in stage and "
        "targets",
        "SET GLOBAL gtid_strict_mode = ON on all servers of the source, and write only at the primary",
    )


def advise_position(server: ServerFacts, files: Sequence[BinlogFile], stored: Checkpoint) -> Advice | None:
    """A warning if the server may soon purge the stored position."""
    age_s = (server.clock_us - stored.watermark_us) / 1e6
    if server.retention_s and stored.watermark_us and age_s > server.retention_s / 2:
        return Advice(
            f"our position is {age_s / 3600:.1f} h old, and the server keeps its log for "
            f"{server.retention_s / 3600:.1f} h",
            f"Extract soon, and keep the log longer: {server.retained_by}",
        )
    if len(files) > 1 and files[0].name == stored.position.file and stored.server in ("", server.identity):
        return Advice(
            f"our position is in {files[0].name}, the oldest of {len(files)} files that the server still has",
            "Extract soon, before it is purged",
        )
    return None


ADVICE: tuple[Callable[[ServerFacts], Advice | None], ...] = (
    advise_row_metadata, advise_row_image, advise_retention, advise_checksum,
)  # fmt: skip
