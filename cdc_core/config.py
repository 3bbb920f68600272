"""The pipeline file: parsed once, at the edge, into frozen models.

Errors name the key path, the value, and what is allowed. The file never contains secrets: a server is named by
`env:VAR` (an environment variable with a `mysql://user:password@host:port` URL) or `airflow:CONN_ID`.
docs/configuration.md lists every key; `json_schema()` is the same for editors.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cdc_core.errors import UsageError
from cdc_core.model import condition
from cdc_core.model.reference import ENVIRONMENT, same_variable, secret_options
from cdc_core.windows import Windows, age_us, parse_moment
from cdc_core.words import counted

MIB = 1 << 20
NAME = re.compile(r"^[a-z][a-z0-9_]{0,47}$")
WAY_BACK_SUFFIX = "_back"
"""Of the names of a pipeline and its file: the one that carries changes back after a cutover."""
ONE_TABLE = "one table"
"""The layout of a table that is not sharded."""
_URL_LOGIN = re.compile(r"//\S*@")
_NEVER_SHOWN = ("salt", "s3_endpoint", "url")
"""Keys whose value may be a secret in the wrong form."""


def _name(value: str) -> str:
    if not NAME.match(value):
        raise ValueError("must be 1 to 48 of a-z, 0-9 and _, beginning with a letter")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _connection(value: str) -> str:
    if not re.match(r"^(env|airflow):[A-Za-z0-9_.-]+$", value):
        raise ValueError("must be env:VARIABLE or airflow:CONNECTION_ID; never a URL with a password")
    return value


def _environment(value: str) -> str:
    if not ENVIRONMENT.match(value):
        raise ValueError("must be env:VARIABLE; never the value itself")
    return value


def _condition(value: str) -> str:
    condition.parse(value)
    return value


def _cron(value: str) -> str:
    Windows(value)
    return value


def _byte_order(value: int | str) -> int | bytes:
    return value.encode() if isinstance(value, str) else value


def _age(value: str) -> str:
    age_us(value)
    return value


def _moment_text(value: Any) -> Any:
    """YAML reads an unquoted timestamp as a datetime: back to text, so that both forms mean the same."""
    return value.isoformat() if isinstance(value, datetime) else value


def _moment(value: str) -> str:
    return parse_moment(value).isoformat().replace("+00:00", "Z")


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _template(value: str) -> str:
    try:
        known = bool(value) and _names(value) <= {"logical", "database", "table", "d", "t"}
        value.format(logical="l", database="d", table="t", d=0, t=0)
    except (ValueError, KeyError, IndexError, AttributeError):
        known = False
    if not known:
        raise ValueError("may use {logical}, {database}, {table}, {d} and {t} only, as in orders_{t:02d}")
    return value


def _no_password(value: str) -> str:
    try:
        parts = urlsplit(value)
        password = parts.password or secret_options(dict(parse_qsl(parts.query, keep_blank_values=True)))
    except ValueError:
        password = None
    if password:
        raise ValueError("holds a password: put the whole URL into an environment variable and write env:VARIABLE")
    return value


def _meta_url(value: str) -> str:
    if value.startswith("env:"):
        return _environment(value)
    return _no_password(value)


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known or "@" in value or parts.query or parts.fragment:
        raise ValueError(
            "must be http://host:port or https://host:port, without a login; credentials come from AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY"
        )
    return value


_SECRET_SETTING = re.compile(r"(?i)(secret|secret[._]?key|access[._]?key|password|token|passphrase)$|account[._]key")


_SECRET_OF_CLUSTER = re.compile(r"spark\.kubernetes\.(driver|executor)\.secretKeyRef\.")
"""Names a secret of the cluster and its key: the value is in the cluster alone."""


def _no_secrets(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Settings become arguments of spark-submit, which every account of the host can list."""
    for name, value in settings.items():
        named = _SECRET_SETTING.search(name) and not _SECRET_OF_CLUSTER.match(name)
        if named or _URL_LOGIN.search(value):
            raise ValueError(
                f"{name} holds a secret, and settings are arguments of spark-submit, which everybody on the host can "
                "read: put it into spark-defaults.conf, or into the environment of the tasks"
            )
    return settings


Name = Annotated[str, AfterValidator(_name)]
Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that must match a whole `database.table`."""
ColumnPattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that must match a whole `database.table.column`."""
ConnectionRef = Annotated[str, AfterValidator(_connection)]
Template = Annotated[str, AfterValidator(_template)]
Moment = Annotated[str, BeforeValidator(_moment_text), AfterValidator(_moment)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class StartPosition(_Model):
    """A position in the log. The first event to read starts at `offset` in `file`."""

    file: str = Field(description="as SHOW BINARY LOGS prints it")
    offset: int = Field(4, ge=4, description="where an event starts, as SHOW BINLOG EVENTS prints it")
    empty: tuple[str, ...] = Field(
        (),
        description="tables (`database.table`) that had no rows at this position, so that their staged changes are "
        "complete; `lockstep init` lists the tables that it has proven to be empty. The state of a table that already "
        "had rows is partial",
    )


class StartConfig(_Model):
    """Where reading starts if nothing is stored for the source yet. Give exactly one key."""

    position: StartPosition | None = Field(None, description="a position in the log")
    gtid: str | None = Field(None, description="a GTID set; every transaction outside it is read")
    timestamp: Moment | None = Field(
        None, description="ISO 8601 with a time zone: reading starts at the first transaction at or after it"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> StartConfig:
        if sum(value is not None for value in (self.position, self.gtid, self.timestamp)) != 1:
            raise ValueError("give exactly one of position, gtid, timestamp")
        return self


class Source(_Model):
    """One server, or a primary and its standbys, of which Lockstep reads one."""

    name: Name = Field(description="part of paths, leases and versions of target rows: never change it")
    connection: ConnectionRef | Annotated[tuple[ConnectionRef, ...], Field(min_length=1)] = Field(
        description="env:VARIABLE with a URL mysql://user:password@host:port, or airflow:CONNECTION_ID; or a list of "
        "them, for a primary and its standbys. Lockstep stays with the server that it read last; if that one is gone, "
        "it reads the first that answers"
    )
    server_id: int = Field(
        ge=1, le=2**32 - 1, description="Lockstep's ID as a replica; no other replica may have the same"
    )
    copy_from: ConnectionRef | None = Field(
        None,
        description="a replica of the server that is read, as env:VARIABLE or airflow:CONNECTION_ID: copies of "
        "existing rows read there. It must replicate everything, by GTIDs, and have nothing of its own; tables without "
        "a key are read at the source",
    )
    start: Literal["earliest", "latest"] | StartConfig = Field(
        "latest",
        description="where to start if nothing is stored yet: earliest, latest (the moment of the first extract), or "
        "one of the keys of `start`",
    )
    heartbeat_s: float = Field(5.0, gt=0, le=600, description="interval of the server's heartbeats when it is idle")
    read_timeout_s: float = Field(
        30.0, gt=0, description="the connection counts as lost after this time without data or a heartbeat"
    )

    reconnect_s: float = Field(
        60.0,
        ge=0,
        description="how long to try to open a lost connection again, with growing pauses; after that Lockstep reads "
        "the next of several servers, or the task fails and may be retried",
    )
    rewind_s: float = Field(
        60.0,
        ge=0,
        description="after a failover without common GTIDs, reading starts this long before the last change that was "
        "read",
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


class Columns(_Model):
    """Columns that are excluded or masked. Patterns must match the whole `database.table.column`."""

    exclude: tuple[ColumnPattern, ...] = Field((), description="regular expressions: columns to leave out")
    mask: tuple[ColumnPattern, ...] = Field(
        (),
        description="regular expressions: columns whose values are replaced by the SHA-256 of salt and value, in hex; "
        "null stays null",
    )
    salt: Annotated[str, AfterValidator(_environment)] | None = Field(
        None, description="env:VARIABLE that holds the salt for `mask`; a different salt gives different hashes"
    )

    @model_validator(mode="after")
    def _masks_are_salted(self) -> Columns:
        if self.mask and self.salt is None:
            raise ValueError("mask needs a salt: name a variable that holds one, as in salt: env:LOCKSTEP_SALT")
        return self


class RowFilter(_Model):
    """Which rows of the matching tables are captured. If several filters match a table, a row must meet them all."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    where: Annotated[str, AfterValidator(_condition)] = Field(
        min_length=1, description="condition on the row's columns, such as status in ('paid', 'sent') and amount >= 10"
    )


class Processor(_Model):
    """A function of your own that changes the columns of matching tables, before anything else. They run in order."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    use: str = Field(min_length=1, description="name of an entry point in the group lockstep.processors")
    options: Mapping[str, Any] = Field(default_factory=dict, description="keyword arguments of the function")


class CaptureRules(_Model):
    """Which source tables, rows and columns are captured. Patterns must match the whole `database.table`."""

    include: tuple[Pattern, ...] = Field(
        min_length=1, description="regular expressions; a table is captured if one matches"
    )
    exclude: tuple[Pattern, ...] = Field((), description="regular expressions; a table is left out if one matches")
    processors: tuple[Processor, ...] = Field((), description="functions of your own that change columns, in order")
    rows: tuple[RowFilter, ...] = Field((), description="which rows are captured; default: every row")
    columns: Columns = Field(default_factory=Columns, description="columns to leave out or mask")
    on_unlogged_change: Literal["stop", "record", "resync"] = Field(
        "stop",
        description="changes without row events (TRUNCATE, ADD COLUMN ... DEFAULT, a column or a table that was "
        "dropped and is created again, cascading foreign keys of servers that do not log them): stop; record 'needs "
        "re-sync' in the manifest or the log and continue; resync: record it, and `lockstep run` copies the table "
        "again (but stop for such foreign keys: no copy makes up for what they change later)",
    )
    on_definition: Literal["drop", "note"] = Field(
        "drop",
        description="statements that define captured tables and change no row: drop them, or note their position and "
        "text in the manifest",
    )
    on_truncate: Literal["unlogged", "stage"] = Field(
        "unlogged",
        description="TRUNCATE TABLE, and a table that is created again after it was dropped. unlogged: treat it like "
        "any other unlogged change; stage: stage it as a change of its own (t), which exports apply, and targets treat "
        "as on_truncate of their tables says",
    )
    on_new: Literal["snapshot", "stream", "stop"] = Field(
        "snapshot",
        description="a table that appears later and matches: copy the rows that it already has, as snapshot.mode says, "
        "and follow it; only follow it; or stop the source where the log creates it",
    )
    on_unreadable: Literal["stop", "isolate", "resync"] = Field(
        "stop",
        description="a table whose definition is unknown, or that has an unsupported value or event: stop the source; "
        "isolate: leave the table out from there on, note 'needs re-sync' in every manifest, and continue with the "
        "others; resync: isolate it, and the next `lockstep run` reads it again from where the source is by then, and "
        "copies it",
    )


class Route(_Model):
    """Source tables that become one logical table. If several routes match a source table, it feeds each of their
    logical tables. If several source tables feed one logical table, they must not share keys, unless the
    target's `shared_keys` is `newest`."""

    match: Pattern = Field(description="regular expression on the whole `database.table`")
    to: str = Field(min_length=1, description=r"logical table name; \1 or \g<name> insert groups of `match`")

    @property
    def only(self) -> str:
        """The one table that `match` matches, if it is not a pattern for several."""
        return re.sub(r"\\(\W)", r"\1", self.match)

    @model_validator(mode="after")
    def _groups_exist(self) -> Route:
        pattern = re.compile(self.match)
        for number, name in re.findall(r"\\(\d+)|\\g<(\w+)>", self.to):
            group = number or name
            known = int(group) <= pattern.groups if group.isdigit() else group in pattern.groupindex
            if not known:
                raise ValueError(f"to {self.to!r}: match {self.match!r} has no group {group}")
        return self


class StageConfig(_Model):
    """Where changes, manifests and runs are stored. S3 credentials come from the environment (AWS_*)."""

    uri: Annotated[str, AfterValidator(_no_password)] = Field(description="file:///directory or s3://bucket/prefix")
    s3_endpoint: Annotated[str, AfterValidator(_endpoint)] | None = Field(
        None, description="URL of an S3 server other than Amazon's"
    )
    s3_region: str = Field("us-east-1", description="region of the bucket")
    compression_level: int = Field(1, ge=1, le=22, description="zstd level of the Parquet files")

    @model_validator(mode="after")
    def _scheme(self) -> StageConfig:
        if not re.match(r"^(file:///|s3://[^/]+)", self.uri):
            raise ValueError(f"uri {self.uri!r}: must begin with file:/// or s3://bucket")
        return self


class MetaConfig(_Model):
    """The database for leases, positions, consume records and ledgers: SQLite, PostgreSQL or MySQL."""

    url: Annotated[str, AfterValidator(_meta_url)] = Field(
        description="SQLAlchemy URL without a password, or env:VARIABLE that holds one"
    )


class FormerShard(_Model):
    """A shard of a former layout, whose key and function the new one has."""

    shard: int = Field(ge=0, description="its number")
    of: int = Field(ge=1, description="how many shards there were")


class Sharding(_Model):
    """How a logical table's rows are distributed: shard = function(key) in 0..databases*tables-1, database-major."""

    key: str = Field(description="column that determines the shard")
    function: Literal["mod", "hash", "range", "python"] = Field(
        "mod",
        description="mod: an integer modulo the number of shards; hash: a hash of any value; range: ranges given by "
        "`bounds`; python: a function of your own",
    )
    bounds: tuple[int | str, ...] = Field(
        (),
        description="for range: the lowest value of each shard except the first, ascending; integers, strings (in the "
        "order of their UTF-8 bytes), or dates and times as ISO strings",
    )
    python: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="for python: module:function, called with an Arrow array of keys and the number of shards; it "
        "returns the shard of each key. It must be deterministic and installed where Spark's workers run",
    )
    databases: int = Field(1, ge=1, le=1024, description="number of databases")
    tables: int = Field(1, ge=1, le=1024, description="number of tables in each")
    former: FormerShard | None = Field(
        None,
        description="only rows of one shard of a former layout, for mod and hash: they are in shards `shard`, "
        "`shard + of`, `shard + 2 of`, ..., and the rule names only these tables; a row of another shard stops the "
        "run. `lockstep reshard` writes it",
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
        """Of shards, with those that are not successors of `former`."""
        return self.databases * self.tables

    def placement(self, number: int) -> str:
        """Which rows are in a shard of the whole layout, on one line, however the shards are called."""
        return f"shard {number} of {self.whole_count} by {self._function}"

    @property
    def _function(self) -> str:
        argument = {"range": f" by {list(self.bounds)}", "python": f" by {self.python}"}.get(self.function, "")
        return f"{self.function}({self.key.lower()}){argument}"


class Guard(_Model):
    """Where the version of each target row is stored. The version keeps older changes from overwriting newer rows."""

    store: Literal["row", "table"] = Field(
        "row",
        description="row: in the invisible column _cdc_version of the table; table: in a separate table "
        "_lockstep_version_<table>, for tables that must not be altered (slower). Do not change this once the table "
        "has rows",
    )


class TargetTable(_Model):
    """Where one logical table goes. Templates may use {logical}, {database}, {table}, {d} and {t} (shard numbers)."""

    database: Template = Field("{database}", description="template of the database's name")
    table: Template = Field("{table}", description="template of the table's name, such as orders_{t:02d}")
    key: tuple[str, ...] | None = Field(
        None, description="columns that identify a row; default: the source table's primary key"
    )
    no_key: Literal["stop", "rows"] = Field(
        "stop",
        description="a source table without a key, if `key` gives none: stop the run, or keep as many copies of each "
        "row as the source has, comparing the values of all columns",
    )
    sharding: Sharding | None = Field(
        None, description="how rows are distributed over several tables; default: one table"
    )
    guard: Guard = Field(default_factory=Guard, description="where row versions are stored")
    on_row_error: Literal["stop", "quarantine"] = Field(
        "stop",
        description="a row that the target rejects (too long, out of range, null, a check constraint, a trigger): stop "
        "the run, or set the row aside under runs/<run>/<plan>/rejected and continue. With quarantine, columns may be "
        "shorter or smaller than the source's",
    )
    on_truncate: Literal["stop", "apply", "ignore"] = Field(
        "stop",
        description="a staged TRUNCATE (tables.on_truncate): stop the run; remove all older rows, if a single source "
        "table feeds this table; or keep the rows",
    )
    shared_keys: Literal["stop", "newest"] = Field(
        "stop",
        description="two source tables, or two sources, have rows with the same key: stop the run, or treat them as "
        "one row, for which the newest change counts, even a delete",
    )
    on_new_column: Literal["add", "stop"] = Field(
        "stop",
        description="a column that the source has and the table lacks: add it, if it allows NULL or has a default, "
        "before rows that have it are written; or stop the run with the statement that adds it",
    )
    freshness: str | None = Field(
        None, description="column that the source increases with each change, such as update_time"
    )

    @property
    def layout(self) -> str:
        """What decides which rows are in which physical table, on one line."""
        return ONE_TABLE if self.sharding is None else self.sharding.layout

    @model_validator(mode="after")
    def _truncates_by_the_rows_own_versions(self) -> TargetTable:
        if self.on_truncate == "apply" and self.guard.store == "table":
            raise ValueError("on_truncate: apply needs guard.store: row, by which every row tells how old it is")
        return self

    @model_validator(mode="after")
    def _rows_without_a_key_have_no_versions(self) -> TargetTable:
        if self.no_key == "rows" and (self.freshness is not None or self.on_row_error == "quarantine"):
            raise ValueError("no_key: rows applies whole batches exactly once: it takes neither freshness nor "
                             "on_row_error: quarantine")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _shards_have_names_of_their_own(self) -> TargetTable:
        if self.sharding is None or self.sharding.former is not None:
            return self  # successors: target.sharding compares the names themselves
        for what, template, mark, count in (
            ("table", self.table, "t", self.sharding.tables),
            ("database", self.database, "d", self.sharding.databases),
        ):
            if count > 1 and not _names(template) & {mark}:
                raise ValueError(f"{what} {template!r}: {count} {what}s per sharding need {{{mark}}} in the template")
        return self


class Target(_Model):
    """Where staged changes are applied."""

    name: Name = Field(description="part of consume records: never change it")
    kind: Literal["mysql"] = Field("mysql", description="MySQL or MariaDB")
    connections: tuple[ConnectionRef, ...] = Field(
        min_length=1, description="one server for all databases, or one for each database number in order"
    )
    tables: Mapping[str, TargetTable] = Field(
        min_length=1, description="rules by logical table name; '*' matches every other table"
    )
    on_missing_table: Literal["create", "stop"] = Field(
        "stop",
        description="a table that does not exist there: create it from the source's definition, with its database, "
        "before the first run that needs it; or stop the run",
    )
    replay_only: bool = Field(
        False, description="only replays that name this target feed it; scheduled runs and `lockstep run` skip it"
    )

    @model_validator(mode="after")
    def _one_server_or_one_per_database(self) -> Target:
        count = len(self.connections)
        for logical, table in self.tables.items():
            databases = table.sharding.databases if table.sharding else 1
            if count > 1 and databases not in (1, count):
                raise ValueError(
                    f"{count} connections, but tables.{logical} is sharded over {databases} databases: give one "
                    "connection, or one for each database number"
                )
        return self

    def table(self, logical: str) -> TargetTable | None:
        """The rule for a logical table; None where this target does not take it."""
        return self.tables.get(logical) or self.tables.get("*")


class Spark(_Model):
    """How the Spark applications are submitted."""

    connection: str = Field("spark_default", description="Airflow connection ID of the Spark cluster")
    session: Literal["run", "task", "remote"] = Field(
        "run",
        description="under Airflow. run: the Spark tasks of a run on one machine share an application; task: each has "
        "its own; remote: they go to a Spark Connect endpoint. `lockstep run` always uses one application",
    )
    idle_s: float = Field(
        60.0,
        ge=5,
        le=600,
        description="a run's application ends when its next task has not come for this long",
    )
    master: str = Field(
        "local[*]",
        description="for `lockstep run`: local[*], the URL of a Spark master, yarn, k8s://https://…, or "
        "sc://host:15002, a Spark Connect endpoint, with session: remote",
    )
    driver_mib: int = Field(
        1024,
        ge=0,
        description="memory for the rows of a job that its driver does itself, in threads; a job that needs more, and "
        "every job at 0, is done by Spark",
    )
    conf: Annotated[Mapping[str, str], AfterValidator(_no_secrets)] = Field(
        default_factory=dict, description="Spark settings by name, none of them a secret"
    )

    @model_validator(mode="after")
    def _client_mode(self) -> Spark:
        if self.conf.get("spark.submit.deployMode", "client") != "client":
            raise ValueError(
                "conf sets spark.submit.deployMode: leave it out, so that the driver runs and ends with the task, with "
                "the logins of its environment; docs/spark.md says why"
            )
        return self

    @model_validator(mode="after")
    def _endpoint(self) -> Spark:
        endpoint = self.master.startswith("sc://")
        if endpoint and self.session != "remote":
            raise ValueError("master is a Spark Connect endpoint: set session: remote, or another master")
        if self.session == "remote" and not endpoint and self.master != "local[*]":
            raise ValueError("session is remote: set master: sc://host:15002, an endpoint of Spark Connect")
        if endpoint and "token" in self.master.lower():
            raise ValueError(
                "master holds a token: put it into the variable SPARK_CONNECT_AUTHENTICATE_TOKEN of whoever runs "
                "`lockstep run`, or into the password of the Airflow connection"
            )
        return self


class Limits(_Model):
    """Limits on memory and batches. The first batch limit reached closes the batch at the next end of a transaction."""

    ring_items: int = Field(
        1 << 20, description="maximum number of changes and transaction ends in the ring; a power of two"
    )
    ring_mib: int = Field(
        256, ge=1, description="memory for changes between the connection and the files; the ring takes half of it"
    )
    batch_rows: int = Field(1_000_000, ge=1, description="maximum number of changes in a batch")
    batch_mib: int = Field(128, ge=1, description="maximum size of a batch's files")
    batch_age_s: float = Field(60.0, gt=0, description="maximum age of an open batch")
    lease_s: float = Field(
        60.0, ge=5, description="an extractor that does not renew its lease for this long loses the source to another"
    )

    @property
    def ring_bytes(self) -> int:
        """Limit of the ring. As much again is for data before and after it, or held twice on its way."""
        return self.ring_mib * MIB // 2

    @property
    def block_bytes(self) -> int:
        """Limit of a block: one is being filled, one decoded."""
        return self.ring_mib * MIB // 16

    @property
    def row_group_buffer_bytes(self) -> int:
        """Limit of rows that wait for their row groups after the ring has released them."""
        return self.ring_mib * MIB // 4

    @model_validator(mode="after")
    def _power_of_two(self) -> Limits:
        if self.ring_items < 2 or self.ring_items & (self.ring_items - 1):
            raise ValueError(f"ring_items {self.ring_items}: must be a power of two")
        return self


class Throttle(_Model):
    """When a copy waits. It is asked between chunks; a limit that is not given does not count."""

    threads_running: int | None = Field(None, ge=1, description="more threads than this run at the source")
    history_list_length: int | None = Field(
        None, ge=1, description="the source keeps more undo records than this (MySQL: needs the privilege PROCESS)"
    )
    replicas: tuple[ConnectionRef, ...] = Field(
        (), description="replicas of the source, as env:VARIABLE or airflow:CONNECTION_ID, whose lag counts"
    )
    replica_lag_s: float = Field(10.0, gt=0, description="one of `replicas` lags more than this, or does not replicate")
    query: str | None = Field(None, min_length=1, description="a query whose only value is above 0 at the source")


class Snapshot(_Model):
    """How rows that exist already are copied."""

    mode: Literal["none", "initial"] = Field(
        "none",
        description="initial: `lockstep run` and the DAG copy each captured table of which rows from before the "
        "capture are missing; none: only `lockstep snapshot` and the DAG cdc_<pipeline>_snapshot copy",
    )
    readers: int = Field(2, ge=1, le=64, description="chunks read at once; two connections to the source each")
    chunk_mib: int = Field(32, ge=1, le=1024, description="size of a chunk's rows, which one query reads")
    chunk_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="if a chunk takes longer to read, the next ones are smaller: meanwhile the source keeps old row "
        "versions",
    )
    throttle: Throttle = Field(default_factory=Throttle, description="when a copy waits")


class Verify(_Model):
    """How `lockstep verify` and the DAG cdc_<pipeline>_verify compare targets with the sources. They read a source in
    chunks, and wait, as snapshot.chunk_mib, chunk_s and throttle say."""

    schedule: Annotated[str, AfterValidator(_cron)] | None = Field(
        None, description="cron expression (UTC) of the DAG; default: it runs only when somebody starts it"
    )
    mode: Literal["ordered", "random", "count", "max-id"] = Field(
        "ordered",
        description="what scheduled runs compare: every row; a sample of the rows; the number of rows; that, and the "
        "greatest key. Only ordered proves that a target is equal",
    )
    sample_percent: float = Field(10.0, gt=0, le=100, description="share of the rows that mode random reads")
    resume_within: Annotated[str, AfterValidator(_age)] = Field(
        "24h", description="a verification that was interrupted longer ago begins from the start"
    )
    repair: bool = Field(
        False,
        description="the DAG repairs what it finds, as `lockstep repair` does, within repair.max_rows_per_day; the "
        "trigger form decides for a single run",
    )


class Repair(_Model):
    """What `lockstep repair` may do, and the DAG cdc_<pipeline>_verify where `verify.repair` is true."""

    max_rows_per_day: int = Field(
        10_000,
        ge=0,
        description="rows of a source that repairs may stage within 24 hours; above it, they stage nothing and end in "
        "`repair.limit`: that many differences have a cause to look for first",
    )


class ReverseQuery(_Model):
    """Old changes are looked up in the source by key before a run applies them, so that it writes no row that is older
    than the source's. Only runs that apply all that is staged do it: `lockstep run`, and DAG runs without a window."""

    older_than: Annotated[str, AfterValidator(_age)] = Field(
        "60s", description="changes that were committed longer ago than this are looked up"
    )
    max_keys: int = Field(
        100_000, ge=1, description="keys that one run looks up at most; further changes are applied as they were logged"
    )
    wait_s: float = Field(
        60.0, gt=0, description="how long a run waits for the source (snapshot.throttle) before it continues without"
    )


class Cutover(_Model):
    """How `lockstep cutover` switches an application from the sources to a target."""

    stop_with: str | None = Field(
        None,
        min_length=1,
        description="command that stops the application's writes (LOCKSTEP_CUTOVER_PHASE=stop) and lets them continue "
        "(release); default: only locks keep them out",
    )
    switch_with: str | None = Field(
        None,
        min_length=1,
        description="command that leads the application to the new tables, called once; it ends with 0 if it has, and "
        "with 3 if it surely has not",
    )
    hook_s: float = Field(30.0, gt=0, description="how long one of these commands may take")
    budget_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="how long writes may be stopped: above it, they continue, and nothing has happened",
    )
    max_lag_s: float = Field(
        3.0, gt=0, description="writes are stopped once three runs in a row have taken less than this"
    )
    patience_s: float = Field(
        10.0, gt=0, description="how long transactions that are open when writes stop are waited for"
    )
    attempts: int = Field(3, ge=1, le=100, description="how often writes are stopped before the command gives up")
    evidence: Annotated[str, AfterValidator(_age)] = Field(
        "24h", description="a full verification that is older than this is made again first"
    )


class Suite(_Model):
    """A Great Expectations suite of your own. An unmet critical expectation fails the run; others are only reported."""

    table: str = Field(min_length=1, description="the logical table whose rows it checks")
    stage: Literal["staged", "merged"] = Field(
        "merged", description="staged: every change of the run; merged: the last change of each key"
    )
    path: str = Field(
        min_length=1,
        description="JSON or YAML file with `expectations`, each with type, kwargs and severity as Great Expectations "
        "writes them; relative to the pipeline file",
    )


class Quality(_Model):
    """Checks of each run, in addition to the built-in ones."""

    suites: tuple[Suite, ...] = Field((), description="suites of your own")
    sample_rows: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="of a run that wrote more rows than this, about so many, evenly spaced, are read back from the "
        "target; default: all rows of every run are",
    )


class Airflow(_Model):
    """How the pipeline's DAG runs. Set pools, connections and alerts in Airflow itself."""

    sensor: Literal["poke", "reschedule"] = Field(
        "poke", description="poke holds a worker slot while it drains; reschedule frees it between pokes"
    )
    poke_interval_s: float = Field(5.0, gt=0, description="pause between two pokes of the extract task")
    timeout_s: float = Field(6 * 3600.0, gt=0, description="the extract task fails if it pokes for longer")
    retries: int = Field(5, ge=0, description="retries of a task that was killed or met a temporary error")
    retry_delay_s: float = Field(10.0, gt=0, description="delay before the first retry; doubles up to ten minutes")
    pool: str | None = Field(None, description="Airflow pool for all tasks; default: Airflow's default pool")


class Retention(_Model):
    """What the DAG cdc_<pipeline>_retention purges: batches that every target has committed, and files of old runs."""

    keep: Annotated[str, AfterValidator(_age)] = Field(
        description="minimum age of what is purged, such as 30d, 12h or 4w; a batch ages from the end of its window"
    )
    keep_meta: Annotated[str, AfterValidator(_age)] | None = Field(
        None,
        description="age, `keep` or more, at which purged batches and committed runs with their ledgers are deleted "
        "from the meta database; default: never",
    )
    compact: Literal["day", "window"] | None = Field(
        None,
        description="joins the staged batches of a whole day (UTC), or of a whole window, into one file per table; "
        "default: never",
    )
    remove_originals: bool = Field(
        False,
        description="removes the files that compacted ones replace, a day after the compaction or later; default: they "
        "stay until their batches are purged",
    )
    schedule: Annotated[str, AfterValidator(_cron)] = Field("30 3 * * *", description="cron expression (UTC)")

    @model_validator(mode="after")
    def _compacted_first(self) -> Retention:
        if self.remove_originals and self.compact is None:
            raise ValueError("remove_originals: nothing is compacted; set compact to day or window")
        return self

    @model_validator(mode="after")
    def _purged_first(self) -> Retention:
        if self.keep_meta is not None and age_us(self.keep_meta) < age_us(self.keep):
            raise ValueError(f"keep_meta {self.keep_meta!r}: less than keep, {self.keep!r}")
        return self

    def forget_us(self, now_us: int) -> int | None:
        """Before when rows leave meta, at a moment; µs UTC."""
        return None if self.keep_meta is None else now_us - age_us(self.keep_meta)


class Pipeline(_Model):
    """One pipeline file."""

    pipeline: Name = Field(description="the pipeline's name; the DAG is cdc_<pipeline>")
    schedule: Annotated[str, AfterValidator(_cron)] = Field(
        "0 * * * *", description="cron expression (UTC); its intervals are the windows of the batches"
    )
    sources: tuple[Source, ...] = Field(min_length=1, description="the servers to read")
    tables: CaptureRules = Field(description="which tables are captured")
    routes: tuple[Route, ...] = Field(
        (), description="logical tables; default: each table's logical name is `database.table`"
    )
    stage: StageConfig = Field(description="where staged files are stored")
    meta: MetaConfig = Field(description="where positions and records are stored")
    targets: tuple[Target, ...] = Field((), description="where changes are applied; may be empty")
    spark: Spark = Field(default_factory=Spark, description="how Spark runs")
    limits: Limits = Field(default_factory=Limits, description="limits on memory and batches")
    snapshot: Snapshot = Field(default_factory=Snapshot, description="how rows that exist already are copied")
    verify: Verify = Field(default_factory=Verify, description="how targets are compared with the sources")
    repair: Repair = Field(default_factory=Repair, description="limits of repairs")
    reverse_query: ReverseQuery | None = Field(
        None, description="old changes are looked up in the source before they are applied; default: they are not"
    )
    cutover: Cutover = Field(default_factory=Cutover, description="how an application is switched to a target")
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
        replicas = [(one, source.server_id) for source in self.sources for one in source.connections]
        for connection, server_id in replicas:
            if replicas.count((connection, server_id)) > 1:
                raise ValueError(f"sources: two read {connection} as server_id {server_id}: give each its own")
        if (same := same_variable(self.references)) is not None:
            raise ValueError(
                f"{same[0]} and {same[1]} are both read from the variable {same[2]}: rename one, for letters' case and "
                "signs do not tell names apart"
            )
        return self

    @property
    def references(self) -> tuple[str, ...]:
        """Every server that the pipeline names, and the salt of its masks, once."""
        named = [one for source in self.sources for one in source.connections]
        named += [
            one for one in (*(source.copy_from for source in self.sources), *self.snapshot.throttle.replicas) if one
        ]
        named += [one for target in self.targets for one in target.connections]
        return tuple(dict.fromkeys([*named, *filter(None, [self.tables.columns.salt])]))

    @property
    def windows(self) -> Windows:
        return Windows(self.schedule)

    @property
    def scheduled_targets(self) -> tuple[Target, ...]:
        """The targets that every run feeds."""
        return tuple(target for target in self.targets if not target.replay_only)

    def feeds_alone(self, name: str, logical: str) -> bool:
        """Whether only the table `name` of a single source can feed a logical table; False where that is unknown."""
        routes = [route for route in self.routes if route.to == logical or "\\" in route.to]
        return len(self.sources) == 1 and all(route.only == name for route in routes)

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

    def source(self, name: str) -> Source:
        return next(source for source in self.sources if source.name == name)

    def target(self, name: str) -> Target:
        return next(target for target in self.targets if target.name == name)


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, of which YAML would silently use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is written twice in one place", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(text: str, *, where: str) -> Pipeline:
    """A pipeline from YAML text; `where` names the file in errors. Raises UsageError (config.yaml, config.invalid)."""
    try:
        data: Any = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(
            f"The file is not valid YAML: {_without_secrets(str(error))}",
            where=where,
            code="config.yaml",
            remedy="fix the line that the message names",
        ) from None
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        problems = list(dict.fromkeys(_explain(dict(problem)) for problem in _relevant(error)))
        raise UsageError(
            f"{counted(len(problems), 'problem')} in the pipeline: {'; '.join(problems)}.",
            where=where,
            code="config.invalid",
            remedy="see docs/configuration.md for every key and its values",
        ) from None


def _without_secrets(text: str) -> str:
    """A URL in the wrong key may contain a password: never repeat it."""
    return _URL_LOGIN.sub("//***@", text)


def _relevant(error: ValidationError) -> list[Any]:
    """Without consequences of another problem: the other forms of a value, a list whose items are wrong."""
    problems = error.errors()
    wrong = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if not (problem["type"] == "literal_error" and isinstance(problem["input"], dict))
        and not (problem["type"] == "model_type" and isinstance(problem["input"], str) and "start" in problem["loc"])
        and not (
            problem["type"] == "tuple_type" and isinstance(problem["input"], str) and "connection" in problem["loc"]
        )
        and not (problem["type"] == "string_type" and isinstance(problem["input"], list))
        and not (
            problem["type"] == "too_short" and any(loc[:-1][: len(problem["loc"])] == problem["loc"] for loc in wrong)
        )
    ]


def _explain(problem: dict[str, Any]) -> str:
    # Pydantic puts the name of a union's member into the path: nothing that is in the file.
    path = ".".join(str(part) for part in problem["loc"] if "[" not in str(part)) or "(top level)"
    value = problem.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) or value is None else f" (got {value!r})"
    if path.rpartition(".")[2] in _NEVER_SHOWN:
        shown = ""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message, shown = f"there is no such key{_nearest(problem['loc'])}", ""
    return _without_secrets(f"{path}: {message}{shown}")


def _nearest(loc: tuple[Any, ...]) -> str:
    """`; did you mean ...` or the allowed keys, found by walking the models along the path."""
    allowed = sorted(_keys_at(Pipeline, list(loc[:-1])))
    close = get_close_matches(str(loc[-1]), allowed, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; allowed are {', '.join(allowed)}" if allowed else ""


def _keys_at(model: type[BaseModel], path: list[Any]) -> set[str]:
    for depth, part in enumerate(path):
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            found = models_in(field.annotation)
            return set().union(*(_keys_at(one, path[depth + 1 :]) for one in found))
    return set(model.model_fields)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def load(path: Path) -> Pipeline:
    """The pipeline of a file, the paths in it absolute. Raises UsageError when it cannot be read or is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"Cannot read the pipeline file: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}.",
            where=str(path),
            code="config.unreadable",
            remedy="give the path of a YAML file, or make one with `lockstep init`",
        ) from None
    parsed = parse(text, where=str(path))
    folder = path.absolute().parent
    suites = tuple(suite.model_copy(update={"path": str(folder / suite.path)}) for suite in parsed.quality.suites)
    return parsed.model_copy(update={"quality": Quality(suites=suites)})


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the pipeline file, for editors."""
    return Pipeline.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
