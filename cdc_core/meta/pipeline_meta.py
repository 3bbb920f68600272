"""`Meta`: a pipeline's part of the meta database, as repositories, each of whose methods is one transaction.

May assume nothing about concurrent users: extractors, tasks of several runs, the command line.
Keeps true: a call that raises has moved nothing; frozen values go in and come out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType

from sqlalchemy import Connection

from cdc_core.errors import Refused
from cdc_core.meta import migrate
from cdc_core.meta.batches import Batches
from cdc_core.meta.consume_records import ConsumeRecords
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.coverages import Coverages
from cdc_core.meta.cutovers import Cutovers
from cdc_core.meta.database import Database, absent, now_us, parse, require_file
from cdc_core.meta.kept_errors import KeptErrors
from cdc_core.meta.leases import Leases
from cdc_core.meta.ledgers import Ledgers
from cdc_core.meta.meta_rows import Lease
from cdc_core.meta.overviews import Overviews
from cdc_core.meta.plan_views import PlanViews
from cdc_core.meta.positions import SourcePositions
from cdc_core.meta.rollouts import Rollouts
from cdc_core.meta.run_register import RunRegister
from cdc_core.meta.schemas import SchemaVersions
from cdc_core.meta.status_views import StatusViews
from cdc_core.meta.table_copies import TableCopies
from cdc_core.meta.target_writes import TargetWrites
from cdc_core.meta.task_failures import TaskFailures
from cdc_core.meta.told_problems import ToldProblems
from cdc_core.meta.verifications import Verifications
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import TableCoverage

log = logging.getLogger(__name__)


class Meta:
    """Open it with `Meta.open`, as a context manager. Threads may share one; a forked process opens its own."""

    def __init__(self, database: Database, leases: Leases | None = None) -> None:
        self._database = database
        self.leases = leases or Leases(database)
        # What is staged.
        self.positions = SourcePositions(database)
        self.batches = Batches(database)
        self.schemas = SchemaVersions(database)
        self.coverages = Coverages(database)
        # Copies of existing rows.
        self.copies = TableCopies(database)
        self.copied = CopiedBatches(database)
        # What is applied.
        self.plans = PlanViews(database)
        self.runs = RunRegister(database)
        self.records = ConsumeRecords(database)
        self.ledgers = Ledgers(database)
        self.writes = TargetWrites(database)
        # What a person watches and decides.
        self.failures = TaskFailures(database)
        self.told = ToldProblems(database)
        self.errors = KeptErrors(database)
        self.verifications = Verifications(database)
        self.rollouts = Rollouts(database)
        self.cutovers = Cutovers(database)
        self.status = StatusViews(database)
        self.overviews = Overviews(database)

    @classmethod
    def open(
        cls,
        url: str,
        pipeline: str,
        *,
        upgrade: bool = False,
        create: bool = True,
        busy_timeout_s: float = 30.0,
        answer_timeout_s: float | None = None,
    ) -> Meta:
        """A pipeline's part of the meta database behind a SQLAlchemy URL, or behind `env:VAR` that holds one.

        A database without Lockstep's tables gets them; one with older tables gets newer ones by `upgrade` only.
        create: False for readers: neither a file nor tables are created.
        answer_timeout_s: how long a server may take to answer; for callers that ask little and must not hang.

        Raises UsageError (config.invalid, config.unset, install.missing), Refused (meta.absent, meta.outdated,
        install.version, connection.denied, disk.not_permitted), RetryLater (connection.unreachable, meta.busy).
        """
        parsed = parse(url)
        if not create:
            require_file(parsed)
        database = Database(parsed, pipeline, busy_timeout_s=busy_timeout_s, answer_timeout_s=answer_timeout_s)
        try:
            _check_version(database, upgrade=upgrade, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def of(self, pipeline: str) -> Meta:
        """Another pipeline's part of the same database."""
        database = self._database.of(pipeline)
        return Meta(database, self.leases.of(database))

    def __enter__(self) -> Meta:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Meta({self._database.name!r})"

    def close(self) -> None:
        self.leases.give_back()
        self._database.close()

    def rebuild(
        self, lease: Lease, manifests: Iterable[Manifest], purged: Mapping[str, TableCoverage] | None = None
    ) -> tuple[Lease, int]:
        """Restores a source's batches and position from its chain of manifests, given from the first one on.

        purged: the coverage that the horizon kept of manifests before them.

        Returns the lease, under an epoch above all of the chain's, and how many batches were missing.
        Raises RetryLater (lease.lost), DataAtRisk (stage.chain).
        """
        raised, added = self.batches.rebuild(lease, tuple(manifests), purged or {})
        self.leases.note_raised(raised)
        return raised, added

    def now_us(self) -> int:
        """The database's clock, µs UTC."""
        return self._database.read(now_us)


def _check_version(database: Database, *, upgrade: bool, create: bool) -> None:
    head = migrate.head()
    revision = database.read(migrate.current)
    if revision == head:
        return
    if revision is None and not create:
        raise absent(database.name)
    if revision is not None and not migrate.known(revision):
        raise Refused(
            f"The meta database is at migration {revision}, which this version of Lockstep ({head}) does not know.",
            where=database.name,
            code="install.version",
            remedy="upgrade Lockstep on this host to the version that migrated the database",
        )
    if revision is not None and not upgrade:
        raise Refused(
            f"The meta database is at migration {revision}; this version of Lockstep needs {head}.",
            where=database.name,
            code="meta.outdated",
            remedy="run `lockstep meta upgrade PIPELINE` while no task of the pipeline runs",
        )
    database.write(_upgrade)
    log.info("meta %s: at migration %s", database.name, head)


def _upgrade(connection: Connection) -> None:
    """Another process may have been first: the check is repeated in the transaction that writes."""
    revision = migrate.current(connection)
    if revision is None:
        migrate.create(connection)
    elif revision != migrate.head():
        migrate.upgrade(connection)
