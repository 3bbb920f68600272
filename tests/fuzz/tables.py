"""A random table, and the statements that change it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.kinds import MARIADB, MYSQL, Kind, any_kind, integer

ODD_NAMES = ("order", "größe", "a b", "CASE", "x`y", "_cd", "0", "per%cent", 'quo"te')


@dataclass
class Column:
    """expression: of a generated column, which takes no value."""

    name: str
    kind: Kind
    options: str = ""
    expression: str = ""

    @property
    def definition(self) -> str:
        generated = f" GENERATED ALWAYS AS ({self.expression})" if self.expression else ""
        return f"{name(self.name)} {self.kind.sql}{generated}{self.options}"


@dataclass
class Table:
    """database, name: at the source. columns: in order. key: the SQL of its keys. keyed: columns of a key."""

    database: str
    name: str
    flavor: str
    target: str
    collations: Sequence[str]
    columns: list[Column] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    keyed: set[str] = field(default_factory=set)
    made: int = 0

    @property
    def sql(self) -> str:
        return f"{name(self.database)}.{name(self.name)}"

    @property
    def create(self) -> str:
        return f"CREATE TABLE {self.sql} ({', '.join([*(column.definition for column in self.columns), *self.keys])})"

    @property
    def written(self) -> list[Column]:
        return [column for column in self.columns if not column.expression]


def name(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"


def random_table(
    chance: random.Random, database: str, title: str, flavor: str, target: str, collations: Sequence[str]
) -> Table:
    """flavor, target: the kinds of the two servers."""
    made = Table(database, title, flavor, target, collations)
    for _ in range(chance.randint(1, 7)):
        made.columns.append(new_column(chance, made))
    if chance.random() < 0.4:
        made.columns.append(_generated(chance, made))
    _add_keys(chance, made)
    return made


def new_column(chance: random.Random, table: Table) -> Column:
    kind = any_kind(chance, table.collations)
    table.made += 1
    title = f"c{table.made}" if chance.random() < 0.85 else f"{chance.choice(ODD_NAMES)}{table.made}"
    options = ""
    if "NULL" not in kind.sql and chance.random() < 0.3:
        number = kind.base in ("int", "decimal", "year", "float", "double")
        options = f" NOT NULL DEFAULT {chance.choice(kind.values)}" if number else " NOT NULL"
    if chance.random() < 0.1:
        # MariaDB wants a default for a NOT NULL column that is invisible.
        options = options if not options or table.flavor == MYSQL or "DEFAULT" in options else ""
        options += " INVISIBLE"
    if chance.random() < 0.2:
        options += " COMMENT 'it''s'"
    return Column(title, kind, options)


def _generated(chance: random.Random, table: Table) -> Column:
    whole = [column for column in table.columns if column.kind.base == "int" and "BIGINT" not in column.kind.sql]
    table.made += 1
    kind = Kind("int", "BIGINT", [])
    source = f"{name(chance.choice(whole).name)} + 7" if whole else "1 + 1"
    # At a server of another kind the column is a plain one, and MariaDB logs a virtual one with FULL images alone.
    ways = [" VIRTUAL", " STORED"] if table.flavor == table.target else [" STORED"]
    return Column(f"g{table.made}", kind, chance.choice(ways), source)


def _add_keys(chance: random.Random, table: Table) -> None:
    """A primary key, a unique key, both, or none."""
    prefixes = table.target == MARIADB  # MySQL has no unique key over the whole of a TEXT
    way = chance.choice(["primary", "primary", "primary", "unique", "both", "none"])
    able = [
        column
        for column in table.written
        if column.kind.keyable and "INVISIBLE" not in column.options and (prefixes or not column.kind.prefix)
    ]
    if not able and way != "none":
        table.made += 1
        table.columns.insert(0, Column(f"id{table.made}", integer(chance)))
        able = [table.columns[0]]
    if way in ("primary", "both"):
        chosen = chance.sample(able, min(len(able), chance.choice([1, 1, 2, 3])))
        _require_values(chosen)
        table.keys.append(f"PRIMARY KEY ({_parts(chance, table, chosen)})")
    if way in ("unique", "both"):
        for number in range(chance.randint(1, 2)):
            chosen = chance.sample(able, min(len(able), chance.choice([1, 2])))
            if chance.random() < 0.8:
                _require_values(chosen)
            table.keys.append(f"UNIQUE KEY {chance.choice('za')}{number} ({_parts(chance, table, chosen)})")


def _require_values(columns: Sequence[Column]) -> None:
    for column in columns:
        if "TIMESTAMP" in column.kind.sql:
            column.kind = Kind(
                column.kind.base, column.kind.sql.replace(" NULL", ""), column.kind.values, column.kind.keyable
            )
        if "NOT NULL" not in column.options:
            column.options = " NOT NULL" + column.options


def _parts(chance: random.Random, table: Table, columns: Sequence[Column]) -> str:
    parts = []
    for column in columns:
        table.keyed.add(column.name)
        length = f"({column.kind.prefix})" if column.kind.prefix else ""
        parts.append(f"{name(column.name)}{length}{chance.choice(['', '', '', ' DESC'])}")
    return ", ".join(parts)


def random_row(chance: random.Random, columns: Sequence[Column]) -> str:
    return ", ".join(
        "NULL" if "NOT NULL" not in column.options and chance.random() < 0.15 else chance.choice(column.kind.values)
        for column in columns
    )


def insert(chance: random.Random, table: Table, rows: int) -> str:
    columns = [
        column for column in table.written if "DEFAULT" not in column.options or chance.random() < 0.7
    ] or table.written
    values = ", ".join(f"({random_row(chance, columns)})" for _ in range(rows))
    verb = chance.choice(["INSERT IGNORE", "INSERT IGNORE", "REPLACE"])
    return f"{verb} INTO {table.sql} ({', '.join(name(column.name) for column in columns)}) VALUES {values}"


def change(chance: random.Random, table: Table) -> str:
    """One statement that changes rows."""
    way = chance.random()
    if way < 0.4:
        return insert(chance, table, chance.randint(1, 8))
    chosen = chance.choice(table.written)
    where = (
        f"WHERE {name(chosen.name)} {chance.choice(['=', '<>', '>='])} {chance.choice(chosen.kind.values)} "
        if chance.random() < 0.6 and chosen.kind.base not in ("geometry", "json")
        else ""
    )
    some = f"{where}LIMIT {chance.randint(1, 6)}"
    if way < 0.8:
        changed = chance.sample(table.written, min(len(table.written), chance.randint(1, 3)))
        pairs = ", ".join(f"{name(column.name)} = {random_row(chance, [column])}" for column in changed)
        return f"UPDATE IGNORE {table.sql} SET {pairs} {some}"
    return f"DELETE FROM {table.sql} {some}"


def redefine(chance: random.Random, table: Table) -> str:
    """One statement that changes the definition; the caller calls `done` where the server took it."""
    way = chance.choice(["add", "add", "drop", "rename", "comment", "index", "truncate", "place"])
    free = [column for column in table.written if column.name not in table.keyed and not _is_used(table, column)]
    if way == "add" or not free:
        added = new_column(chance, table)
        if added.kind.base == "geometry":  # MariaDB gives old rows an empty value, which MySQL takes for no geometry
            added.options = added.options.replace(" NOT NULL", "")
        place = chance.choice(["", " FIRST", f" AFTER {name(chance.choice(table.columns).name)}"])
        table.columns.append(added)
        return f"ALTER TABLE {table.sql} ADD COLUMN {added.definition}{place}"
    chosen = chance.choice(free)
    if way == "drop" and len(table.columns) > 2:
        table.columns.remove(chosen)
        return f"ALTER TABLE {table.sql} DROP COLUMN {name(chosen.name)}"
    if way == "rename":
        table.made += 1
        former, chosen.name = chosen.name, f"r{table.made}"
        return f"ALTER TABLE {table.sql} RENAME COLUMN {name(former)} TO {name(chosen.name)}"
    if way == "comment":
        chosen.options = chosen.options.partition(" COMMENT")[0] + f" COMMENT 'now {table.made}'"
        return f"ALTER TABLE {table.sql} MODIFY COLUMN {chosen.definition}"
    if way == "index":
        table.made += 1
        length = f"({chosen.kind.prefix})" if chosen.kind.prefix else ""
        if not chosen.kind.keyable:
            return f"ALTER TABLE {table.sql} COMMENT 'x{table.made}'"
        return f"ALTER TABLE {table.sql} ADD INDEX i{table.made} ({name(chosen.name)}{length})"
    if way == "place":
        return f"ALTER TABLE {table.sql} MODIFY COLUMN {chosen.definition} FIRST"
    return f"TRUNCATE TABLE {table.sql}"


def _is_used(table: Table, column: Column) -> bool:
    return any(name(column.name) in other.expression for other in table.columns)


def collations_of(flavor: str, names: Sequence[str], charsets: Sequence[str]) -> list[str]:
    """Of a server's collations those of these character sets, and MariaDB's alias-free ones."""
    return [
        collation
        for collation in names
        if collation.partition("_")[0] in charsets and not (flavor == MARIADB and collation.startswith("uca1400"))
    ]
