"""The key `targets`: where changes are applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from cdc_core.config.value_types import Age, CatalogProperties, ConnectionRef, Model, Name, Template, names_in

ONE_TABLE = "one table"
"""The layout of a table that is not sharded."""


def _byte_order(value: int | str) -> int | bytes:
    return value.encode() if isinstance(value, str) else value


class FormerShard(Model):
    """A shard of a former layout, whose key and function the new one has."""

    shard: int = Field(ge=0, description="its number")
    of: int = Field(ge=1, description="how many shards there were")


class Sharding(Model):
    """How a logical table's rows are distributed: shard = function(key) in 0..databases*tables-1, database-major."""

    key: str = Field(min_length=1, description="column that determines the shard")
    function: Literal["mod", "hash", "range", "python"] = Field(
        "mod",
        description="mod: an integer modulo the number of shards; hash: a hash of any value; range: by "
        "`bounds`; python: your own function",
    )
    bounds: tuple[int | str, ...] = Field(
        (),
        description="for range: the lowest value of each shard but the first, ascending: integers, strings (in "
        "the order of their UTF-8 bytes), or ISO dates and times",
    )
    python: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="for python: module:function, called with an Arrow array of keys and the number of shards; "
        "returns the shard of each key. Deterministic, and installed where Spark's workers run",
    )
    databases: int = Field(1, ge=1, le=1024, description="number of databases")
    tables: int = Field(1, ge=1, le=1024, description="number of tables in each")
    former: FormerShard | None = Field(
        None,
        description="written by `lockstep reshard`: the rows of one shard of a former layout, in shards "
        "`shard`, `shard + of`, `shard + 2 of`, ...; a row of another shard stops the run",
    )

    @model_validator(mode="after")
    def _function_has_its_argument(self) -> Sharding:
        count = self.databases * self.tables
        if (self.function == "range") != bool(self.bounds) or (self.function == "python") != (self.python is not None):
            raise ValueError("function range needs bounds, python needs python; no other function takes them")
        if self.bounds and len(self.bounds) != count - 1:
            raise ValueError(f"bounds: {count} shards have {count - 1} bounds, not {len(self.bounds)}")
        if len({type(bound) for bound in self.bounds}) > 1:
            raise ValueError("bounds: integers and texts have no common order")
        if list(self.bounds) != sorted(set(self.bounds), key=_byte_order):
            raise ValueError("bounds must ascend, each above the one before")
        return self

    @model_validator(mode="after")
    def _former_shard_has_successors(self) -> Sharding:
        if self.former is None:
            return self
        count = self.databases * self.tables
        if self.function not in ("mod", "hash"):
            raise ValueError(f"former needs function mod or hash: with {self.function}, shards have no successors")
        if self.former.shard >= self.former.of or count % self.former.of:
            raise ValueError(
                f"former: shard {self.former.shard} of {self.former.of} has no successors among {count} shards: give a "
                "shard below `of`, and a multiple of `of` shards"
            )
        return self

    @property
    def layout(self) -> str:
        """What decides which rows are in which physical table, on one line."""
        own = "" if self.former is None else f", of shard {self.former.shard} of {self.former.of}"
        return f"{self._function} over {self.databases} x {self.tables}{own}"

    @property
    def whole_count(self) -> int:
        """The number of shards, with those that are not successors of `former`."""
        return self.databases * self.tables

    def placement(self, number: int) -> str:
        """Which rows are in a shard of the whole layout, on one line, however the shards are called."""
        return f"shard {number} of {self.whole_count} by {self._function}"

    @property
    def _function(self) -> str:
        argument = {"range": f" by {list(self.bounds)}", "python": f" by {self.python}"}.get(self.function, "")
        return f"{self.function}({self.key.lower()}){argument}"


class Guard(Model):
    """Where the version of each target row is kept, which keeps older changes from overwriting newer rows."""

    store: Literal["row", "table"] = Field(
        "row",
        description="row: in the invisible column _cdc_version; table: in a table _lockstep_version_<table>, "
        "for tables that must not be altered (slower). Do not change it once the table has rows",
    )


ColumnName = Annotated[str, Field(min_length=1)]


class TargetTable(Model):
    """What each kind of target decides about one logical table."""

    key: tuple[ColumnName, ...] | None = Field(
        None, min_length=1, description="columns that identify a row; default: the source's primary key"
    )
    on_truncate: Literal["stop", "apply", "ignore"] = Field(
        "stop",
        description="a staged TRUNCATE: stop the run; apply: remove all older rows, if one source table feeds "
        "this table; ignore: keep the rows",
    )
    shared_keys: Literal["stop", "newest"] = Field(
        "stop",
        description="two source tables have rows with one key: stop the run, or let the newest change count, "
        "even a delete",
    )
    on_new_column: Literal["add", "stop"] = Field(
        "stop",
        description="add: the run follows the source's columns: it adds, renames, and allows NULL where the "
        "source dropped one. stop: the run stops with the statement to execute",
    )

    @property
    def layout(self) -> str:
        """What decides which rows are in which physical table, on one line."""
        return ONE_TABLE

    @model_validator(mode="after")
    def _columns_of_the_key_are_different(self) -> Self:
        if len({name.lower() for name in self.key or ()}) < len(self.key or ()):
            raise ValueError(f"key {list(self.key or ())}: a column is named twice")
        return self


class MysqlTable(TargetTable):
    """Where one logical table goes. Templates may use {logical}, {database}, {table}, {d} and {t} (shard numbers)."""

    database: Template = Field("{database}", description="template of the database's name")
    table: Template = Field("{table}", description="template of the table's name, such as orders_{t:02d}")
    no_key: Literal["stop", "rows"] = Field(
        "stop",
        description="a source table without a key: stop the run, or keep as many copies of each row as the source has",
    )
    sharding: Sharding | None = Field(None, description="how rows are distributed over several tables")
    guard: Guard = Field(default_factory=Guard, description="where row versions are stored")
    on_row_error: Literal["stop", "quarantine"] = Field(
        "stop",
        description="a row that the target rejects: stop the run, or set the row aside and continue. With "
        "quarantine, columns may be smaller than the source's",
    )
    freshness: str | None = Field(
        None, description="column that the source increases with each change, such as update_time"
    )

    @property
    def layout(self) -> str:
        """What decides which rows are in which physical table, on one line."""
        return ONE_TABLE if self.sharding is None else self.sharding.layout

    @model_validator(mode="after")
    def _truncates_by_the_rows_own_versions(self) -> Self:
        if self.on_truncate == "apply" and self.guard.store == "table":
            raise ValueError("on_truncate: apply needs guard.store: row, by which every row tells how old it is")
        return self

    @model_validator(mode="after")
    def _rows_without_a_key_have_no_versions(self) -> Self:
        if self.no_key == "rows" and (self.freshness is not None or self.on_row_error == "quarantine"):
            raise ValueError(
                "no_key: rows applies whole batches exactly once: it takes neither freshness nor "
                "on_row_error: quarantine"
            )
        return self

    @model_validator(mode="after")
    def _shards_have_names_of_their_own(self) -> Self:
        if self.sharding is None or self.sharding.former is not None:
            return self  # successors: target.sharding compares the names themselves
        for what, template, mark, count in (
            ("table", self.table, "t", self.sharding.tables),
            ("database", self.database, "d", self.sharding.databases),
        ):
            if count > 1 and not names_in(template) & {mark}:
                raise ValueError(f"{what} {template!r}: {count} {what}s per sharding need {{{mark}}} in the template")
        return self


class _Applied(Model):
    """What every kind of target has."""

    name: Name = Field(description="part of consume records: never change it")


class MysqlTarget(_Applied):
    """Tables of MySQL or MariaDB servers, sharded or not."""

    kind: Literal["mysql"] = Field("mysql", description="MySQL or MariaDB")
    connections: tuple[ConnectionRef, ...] = Field(
        min_length=1, description="one server, or one for each database number in order"
    )
    tables: Mapping[str, MysqlTable] = Field(
        min_length=1, description="rules by logical table name; '*' matches every other table"
    )
    on_missing_table: Literal["create", "stop"] = Field(
        "stop",
        description="a table that does not exist: create it and its database from the source's definition, or "
        "stop the run",
    )
    existing: Literal["replace", "keep"] | None = Field(
        None,
        description="rows that the stage has not written. replace: the first run empties these tables; keep: "
        "the rows stay until the source changes them or the table is copied again. Not set: "
        "`lockstep check` and the run stop",
    )
    sessions: int = Field(
        32,
        ge=1,
        description="how many tasks of a run work at the target at once; keep it well below max_connections",
    )
    part_rows: int = Field(
        1_000_000,
        ge=0,
        description="a table with more rows in a run is written in transactions of this size, where that is "
        "safe; 0: always in one",
    )

    @model_validator(mode="after")
    def _one_server_or_one_per_database(self) -> Self:
        count = len(self.connections)
        for logical, table in self.tables.items():
            databases = table.sharding.databases if table.sharding else 1
            if count > 1 and databases not in (1, count):
                raise ValueError(
                    f"{count} connections, but tables.{logical} is sharded over {databases} databases: give one "
                    "connection, or one for each database number"
                )
        return self

    def table(self, logical: str) -> MysqlTable | None:
        """The rule for a logical table; None where this target does not take it."""
        return self.tables.get(logical) or self.tables.get("*")


class LakeTable(TargetTable):
    """How one logical table is mirrored. The template may use {logical}, {database} and {table}."""

    table: Template = Field("{table}", description="template of the table's name in the namespace")
    on_new_column: Literal["add", "stop"] = Field(
        "add", description="add: the mirror follows the source's columns; stop: the run stops"
    )
    deletes: Literal["remove", "flag"] = Field(
        "remove",
        description="a deleted row: remove: it leaves the mirror; flag: it stays, with _cdc_deleted. Decided when the "
        "mirror is made",
    )
    changes: Literal["off", "table"] = Field(
        "off", description="table: every change is also a row of a table <table>__changes, published with the mirror"
    )

    @field_validator("changes", mode="before")
    @classmethod
    def _yaml_takes_off_for_false(cls, given: Any) -> Any:
        return "off" if given is False else given


class KeptCuts(Model):
    """Which cuts of a lake stay readable: by them, the whole database can be read as of a position of the log."""

    hourly: Age = Field("48h", description="one cut of each hour, for this long")
    daily: Age = Field("35d", description="one cut of each day, for this long")


class IcebergTarget(_Applied):
    """Iceberg tables in a lake: one for each logical table, published together."""

    kind: Literal["iceberg"] = Field(description="Iceberg tables, by PyIceberg")
    catalog: CatalogProperties = Field(
        min_length=1,
        description="PyIceberg's properties of the catalog, such as type, uri and warehouse. env:VARIABLE stands for "
        "the value of an environment variable, airflow:CONNECTION_ID for the URL of a connection of type postgres, or "
        "the password of one of another type; a secret must be given so",
    )
    namespace: str = Field(
        pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", description="the namespace of all tables; part of their names"
    )
    tables: Mapping[str, LakeTable] = Field(
        min_length=1, description="rules by logical table name; '*' matches every other table"
    )
    on_missing_table: Literal["create", "stop"] = Field(
        "create", description="a table that does not exist: create it, or stop the run"
    )
    keep: KeptCuts = Field(default_factory=KeptCuts, description="which cuts stay readable")

    def table(self, logical: str) -> LakeTable | None:
        """The rule for a logical table; None where this target does not take it."""
        return self.tables.get(logical) or self.tables.get("*")

    def flags_deletes(self, logical: str) -> bool:
        """Whether deleted rows stay in the mirror of a logical table."""
        rule = self.table(logical)
        return rule is not None and rule.deletes == "flag"

    def keeps_changes(self, logical: str) -> bool:
        """Whether every change of a logical table is a row of its changes table."""
        rule = self.table(logical)
        return rule is not None and rule.changes == "table"


def _kind(given: Any) -> str:
    """The tag of a target's model. Brackets keep it out of the paths that errors show (config/file.py)."""
    kind = given.get("kind", "mysql") if isinstance(given, Mapping) else getattr(given, "kind", "mysql")
    return f"[{kind}]"


Target = Annotated[
    Annotated[MysqlTarget, Tag("[mysql]")] | Annotated[IcebergTarget, Tag("[iceberg]")], Discriminator(_kind)
]
"""Where staged changes are applied."""
