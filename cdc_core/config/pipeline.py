"""A pipeline file as a whole, and what follows from several of its keys together."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic import Field, model_validator

from cdc_core.config.capture_options import CaptureRules, Route
from cdc_core.config.copy_options import ReverseQuery, Snapshot
from cdc_core.config.cutover_options import CutoverOptions
from cdc_core.config.run_options import Airflow, Quality, SparkOptions
from cdc_core.config.source_options import Source
from cdc_core.config.storage_options import Limits, MetaConfig, Retention, StageConfig
from cdc_core.config.target_options import IcebergTarget, MysqlTarget, Target
from cdc_core.config.value_types import Cron, Model, Name
from cdc_core.config.verify_options import Repair, Verify
from cdc_core.errors import UsageError
from cdc_core.model.choices import choose
from cdc_core.model.connection_reference import is_reference, same_variable
from cdc_core.model.readable import counted
from cdc_core.model.windows import Windows


class Pipeline(Model):
    """One pipeline file."""

    pipeline: Name = Field(description="the pipeline's name; its DAG is cdc_<pipeline>")
    schedule: Cron = Field(
        "0 * * * *", description="cron expression (UTC); its intervals are the windows of the batches"
    )
    sources: tuple[Source, ...] = Field(min_length=1, description="the servers to read")
    tables: CaptureRules = Field(description="which tables are captured")
    routes: tuple[Route, ...] = Field((), description="logical tables; default: `database.table`")
    stage: StageConfig = Field(description="where staged files are kept")
    meta: MetaConfig = Field(description="where positions and records are kept")
    targets: tuple[Target, ...] = Field((), description="where changes are applied; may be empty")
    spark: SparkOptions = Field(default_factory=SparkOptions, description="how Spark runs")
    limits: Limits = Field(default_factory=Limits, description="limits on memory and batches")
    snapshot: Snapshot = Field(default_factory=Snapshot, description="how existing rows are copied")
    verify: Verify = Field(default_factory=Verify, description="how targets are compared with the sources")
    repair: Repair = Field(default_factory=Repair, description="limits of repairs")
    reverse_query: ReverseQuery | None = Field(
        None, description="look old changes up in the source before they are applied; default: no"
    )
    cutover: CutoverOptions = Field(
        default_factory=CutoverOptions, description="how an application is switched to a target"
    )
    quality: Quality = Field(default_factory=Quality, description="expectations of your own")
    airflow: Airflow = Field(default_factory=Airflow, description="how the DAG runs")
    retention: Retention | None = Field(None, description="when staged history is purged; default: never")

    @model_validator(mode="after")
    def _unique(self) -> Pipeline:
        for what, names in (
            ("sources", [s.name for s in self.sources]),
            ("targets", [t.name for t in self.targets]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: the name {twice[0]!r} is used twice")
        replicas = [(connection, source.server_id) for source in self.sources for connection in source.connections]
        for connection, server_id in replicas:
            if replicas.count((connection, server_id)) > 1:
                raise ValueError(f"sources: two read {connection} as server_id {server_id}: give each its own")
        if (same := same_variable((*self.references, *self.lake_references))) is not None:
            raise ValueError(
                f"{same[0]} and {same[1]} are both read from the variable {same[2]}: rename one, for letters' case and "
                "signs do not tell names apart"
            )
        return self

    @property
    def references(self) -> tuple[str, ...]:
        """Every server that the pipeline names, and the salt of its masks, once."""
        named = [connection for source in self.sources for connection in source.connections]
        named += self.snapshot.throttle.replicas
        named += [connection for target in self.databases for connection in target.connections]
        return tuple(dict.fromkeys([*named, *filter(None, [self.tables.columns.salt])]))

    @property
    def kept_elsewhere(self) -> dict[str, Any]:
        """What was chosen and holds in the pipelines that Lockstep writes for the same rows, too. Not what a run does
        about rows that it does not expect (suites, tables.on_*): a way back stops there, and a person decides."""
        chosen: dict[str, Any] = self.model_dump(
            mode="json",
            exclude_unset=True,
            exclude_none=True,
            include={"retention": True, "repair": True, "quality": {"sample_rows"}},
        )
        return {key: value for key, value in chosen.items() if value}

    @property
    def windows(self) -> Windows:
        return Windows(self.schedule)

    @property
    def databases(self) -> tuple[MysqlTarget, ...]:
        """The targets that are servers of MySQL or MariaDB."""
        return tuple(target for target in self.targets if isinstance(target, MysqlTarget))

    @property
    def lake_references(self) -> tuple[str, ...]:
        """What the catalogs of lakes name, once: the values may be secrets."""
        lakes = [target for target in self.targets if isinstance(target, IcebergTarget)]
        return tuple(dict.fromkeys(value for lake in lakes for value in lake.catalog.values() if is_reference(value)))

    def feeds_alone(self, name: str, logical: str) -> bool:
        """Whether only the table `name` of a single source can feed a logical table; False where that is unknown."""
        routes = [route for route in self.routes if route.to == logical or "\\" in route.to]
        # A table that is called so itself, and that no route leads elsewhere.
        unrouted = name != logical and not any(
            re.fullmatch(route.match, logical, re.IGNORECASE) for route in self.routes
        )
        called_so = unrouted and any(re.fullmatch(pattern, logical, re.IGNORECASE) for pattern in self.tables.include)
        return len(self.sources) == 1 and not called_so and all(route.only == name for route in routes)

    @property
    def copies_again(self) -> bool:
        """Whether runs copy tables whose changes were missed, without being asked."""
        return "resync" in (self.tables.on_unlogged_change, self.tables.on_unreadable)

    @property
    def copies_by_itself(self) -> bool:
        """Whether runs copy tables that lack rows without being asked: from before their capture, or missed since."""
        return self.copies_again or self.snapshot.mode == "initial"

    def counts_newest(self, target: str, logical: str, name: str) -> bool:
        """Whether rows of the source table `name` and of others count as one in the target, the newest of them."""
        rule = self.target(target).table(logical)
        return rule is not None and rule.shared_keys == "newest" and not self.feeds_alone(name, logical)

    def other_key(self, logical: str, key: Collection[str]) -> tuple[str, ...]:
        """The columns by which the rules of a target identify the rows of a logical table, if they are not those of
        this key; () if no target has others."""
        rules = [rule for target in self.targets if (rule := target.table(logical)) is not None]
        return next((rule.key for rule in rules if rule.key and set(rule.key) != set(key)), ())

    def source(self, name: str) -> Source:
        return next(source for source in self.sources if source.name == name)

    def target(self, name: str) -> Target:
        return next(target for target in self.targets if target.name == name)

    def database(self, name: str) -> MysqlTarget:
        """The target of this name. Raises UsageError (usage.argument) for one that is a lake."""
        return _require_database(self.target(name))

    def one_database(self, name: str | None, where: str) -> MysqlTarget:
        """The target of this name, or the only one that is a database. Raises UsageError (usage.argument,
        usage.unknown_name)."""
        if name is None and len(self.databases) == 1:
            return self.databases[0]
        return _require_database(self.one_target(name, where))

    def one_target(self, name: str | None, where: str) -> Target:
        """The target of this name, or the only one. where: who asks. Raises UsageError (usage.argument,
        usage.unknown_name)."""
        names = [target.name for target in self.targets]
        chosen = choose(names, None if name is None else [name], "target", "--target")
        if len(chosen) == 1:
            return self.target(chosen[0])
        raise UsageError(
            f"The pipeline has {counted(len(names), 'target')}.",
            where=where,
            code="usage.argument",
            remedy=f"add --target, one of: {', '.join(names)}" if names else "add a target to the pipeline file",
        )


def _require_database(target: Target) -> MysqlTarget:
    if isinstance(target, MysqlTarget):
        return target
    raise UsageError(
        f"The target {target.name!r} is a lake: this is for targets that are servers of MySQL or MariaDB.",
        where=f"targets.{target.name}",
        code="usage.argument",
        remedy="name another target; docs/targets.md says what a lake does instead",
    )
