"""What a statement in the log is: transaction control, definition, data, or none of our business.

A pure function of the statement's text. It must keep true that whatever it does not know for harmless is UNKNOWN,
DATA or an unlogged change: the caller stops on those. The rules for ALTER TABLE stand in `alter`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from cdc_core.source.alter import unlogged_by_alter
from cdc_core.source.alter_columns import ColumnChanges, column_changes
from cdc_core.source.sql_tokens import Kind, Reader, Token, decode, tokens

Table = tuple[str, str]
"""Database and table."""


class Action(Enum):
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to savepoint"
    XA_START = "xa start"
    XA_END = "xa end"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    DEFINITION = "definition"
    DATA = "data"
    HARMLESS = "harmless"
    """Accounts, privileges, views, routines, upkeep: no row of a table changes by it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Statement:
    """tables: those whose definition or data it touches; None where that cannot be told, so that any may be.

    database: the one that is dropped whole, else "". unlogged: why rows changed without row events, else "".
    name: of a savepoint, or the xid of an XA statement as `X'gtrid',X'bqual',format`.
    guarded: IF EXISTS, IF NOT EXISTS. vacates: names under which no table is left. columns: what ALTER TABLE did.
    """

    action: Action
    verb: str
    tables: tuple[Table, ...] | None = ()
    database: str = ""
    unlogged: str = ""
    name: str = ""
    guarded: bool = False
    vacates: tuple[Table, ...] = ()
    columns: ColumnChanges | None = None


_HARMLESS_VERBS = frozenset({
    "GRANT", "REVOKE", "FLUSH", "ANALYZE", "OPTIMIZE", "CHECK", "INSTALL", "UNINSTALL", "SHUTDOWN", "KILL", "CACHE",
    "LOCK", "UNLOCK", "PURGE", "BACKUP", "SIGNAL", "BINLOG",
})  # fmt: skip
_HARMLESS_SETS = frozenset({"PASSWORD", "ROLE", "DEFAULT"})
_DATA_VERBS = frozenset({
    "INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "CALL", "DO", "WITH", "SELECT", "HANDLER", "EXECUTE", "VALUES",
    "TABLE", "MERGE",
})  # fmt: skip
_HARMLESS_OBJECTS = frozenset({
    "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "TABLESPACE", "LOGFILE", "PACKAGE",
    "RESOURCE", "LIBRARY", "INSTANCE", "UNDO", "SEQUENCE", "CATALOG",
})  # fmt: skip


def classify(sql: bytes, database: str, *, client_collation: int = 0, sql_mode: int | None = None) -> Statement:
    """What the statement, run with `database` as the default one, is."""
    read = Reader(tokens(decode(sql, client_collation), sql_mode or 0))
    verb = read.next().word
    if verb == "BEGIN" or (verb == "START" and read.peek().word == "TRANSACTION"):
        return Statement(Action.BEGIN, verb)
    if verb == "COMMIT":
        return Statement(Action.COMMIT, verb)
    if verb == "ROLLBACK":
        return _rollback(read)
    if verb == "SAVEPOINT":
        return Statement(Action.SAVEPOINT, verb, name=read.next().text)
    if verb == "RELEASE":
        return Statement(Action.HARMLESS, verb)
    if verb == "XA":
        return _xa(read)
    if verb in ("CREATE", "DROP", "ALTER", "RENAME", "TRUNCATE"):
        return _DEFINITIONS[verb](read, database)
    if verb in _DATA_VERBS:
        return Statement(Action.DATA, verb, tables=_written(verb, read, database))
    if verb in _HARMLESS_VERBS or (verb == "SET" and read.peek().word in _HARMLESS_SETS):
        return Statement(Action.HARMLESS, verb)
    return Statement(Action.UNKNOWN, verb or "(none)", tables=None)


def _rollback(read: Reader) -> Statement:
    read.take("WORK")
    if read.take("TO"):
        read.take("SAVEPOINT")
        return Statement(Action.ROLLBACK_TO, "ROLLBACK TO", name=read.next().text)
    return Statement(Action.ROLLBACK, "ROLLBACK")


_XA_ACTIONS = {
    "START": Action.XA_START, "BEGIN": Action.XA_START, "END": Action.XA_END, "COMMIT": Action.XA_COMMIT,
    "ROLLBACK": Action.XA_ROLLBACK,
}  # fmt: skip


def _xa(read: Reader) -> Statement:
    """`XA COMMIT X'6131',X'',1`: the server writes all three parts, the texts in hex."""
    action = _XA_ACTIONS.get(read.next().word, Action.UNKNOWN)
    parts = [part for part in read.clauses() if part]
    texts = [_xid_part(part) for part in parts]
    gtrid, bqual, number = (*texts, "", "1")[:3] if len(texts) == 1 else (*texts, "1")[:3]
    return Statement(action, "XA", name=f"X'{gtrid}',X'{bqual}',{number}")


def _xid_part(part: list[Token]) -> str:
    if part[0].word == "X" and len(part) > 1:
        return part[1].text.lower()
    if part[0].kind is Kind.STRING:
        return part[0].text.encode().hex()
    return part[0].text


def _create(read: Reader, database: str) -> Statement:
    replaces = read.take("OR", "REPLACE")
    while (word := read.peek().word) in ("DEFINER", "ALGORITHM", "SQL", "AGGREGATE", "UNIQUE", "FULLTEXT", "SPATIAL",
                                         "VECTOR", "ONLINE", "OFFLINE"):  # fmt: skip
        read.next()
        if word == "SPATIAL" and read.take("REFERENCE"):
            return Statement(Action.HARMLESS, "CREATE SPATIAL REFERENCE SYSTEM")
        if word == "SQL":
            read.take("SECURITY")
            read.next()
        elif read.take_sign("="):
            _pass_account(read)
    temporary = read.take("TEMPORARY")
    kind = read.next().word
    if kind == "TABLE":
        if temporary:
            return Statement(Action.HARMLESS, "CREATE TEMPORARY TABLE")
        guarded = read.take("IF", "NOT", "EXISTS")
        table = read.table(database)
        reason = "CREATE OR REPLACE drops the rows that the table had" if replaces else ""
        return Statement(Action.DEFINITION, "CREATE TABLE", tables=_known(table), unlogged=reason, guarded=guarded)
    if kind == "INDEX":
        return _index("CREATE INDEX", read, database)
    if kind in ("DATABASE", "SCHEMA"):
        if replaces:
            return Statement(
                Action.DEFINITION, "CREATE OR REPLACE DATABASE", database=_name_after_exists(read),
                unlogged="CREATE OR REPLACE drops the tables that the database had",
            )  # fmt: skip
        return Statement(Action.HARMLESS, f"CREATE {kind}")
    if kind in _HARMLESS_OBJECTS:
        return Statement(Action.HARMLESS, f"CREATE {kind}")
    return Statement(Action.UNKNOWN, f"CREATE {kind}", tables=None)


def _pass_account(read: Reader) -> None:
    """`user`@`host`, CURRENT_USER, CURRENT_USER(), or a plain value."""
    read.next()
    if read.take_sign("@"):
        read.next()
    elif read.take_sign("("):
        read.take_sign(")")


def _name_after_exists(read: Reader) -> str:
    if read.take("IF"):
        read.take("NOT")
        read.take("EXISTS")
    return read.next().text


def _drop(read: Reader, database: str) -> Statement:
    temporary = read.take("TEMPORARY")
    if read.take("SPATIAL", "REFERENCE"):
        return Statement(Action.HARMLESS, "DROP SPATIAL REFERENCE SYSTEM")
    read.take_any("ONLINE", "OFFLINE")
    kind = read.next().word
    if kind in ("TABLE", "TABLES"):
        if temporary:
            return Statement(Action.HARMLESS, "DROP TEMPORARY TABLE")
        guarded = read.take("IF", "EXISTS")
        dropped = _tables(read, database)
        return Statement(
            Action.DEFINITION, "DROP TABLE", tables=dropped, guarded=guarded, vacates=dropped or ()
        )  # fmt: skip
    if kind in ("DATABASE", "SCHEMA"):
        return Statement(Action.DEFINITION, "DROP DATABASE", tables=(), database=_name_after_exists(read))
    if kind == "INDEX":
        return _index("DROP INDEX", read, database)
    if kind in _HARMLESS_OBJECTS or (kind == "PREPARE"):
        return Statement(Action.HARMLESS, f"DROP {kind}")
    return Statement(Action.UNKNOWN, f"DROP {kind}", tables=None)


def _tables(read: Reader, database: str) -> tuple[Table, ...] | None:
    found: list[Table] = []
    while (table := read.table(database)) is not None:
        found.append(table)
        if not read.take_sign(","):
            return tuple(found)
    return None


def _index(verb: str, read: Reader, database: str) -> Statement:
    while not read.done:
        if read.take("ON"):
            return Statement(Action.DEFINITION, verb, tables=_known(read.table(database)))
        read.next()
    return Statement(Action.UNKNOWN, verb, tables=None)


def _alter(read: Reader, database: str) -> Statement:
    while read.peek().word in ("DEFINER", "ALGORITHM", "SQL"):
        word = read.next().word
        if word == "SQL":
            read.take("SECURITY")
            read.next()
        elif read.take_sign("="):
            _pass_account(read)
    read.take_any("ONLINE", "OFFLINE")
    ignore = read.take("IGNORE")
    kind = read.next().word
    if kind == "TABLE":
        read.take("IF", "EXISTS")
        table = read.table(database)
        if not read.take("NOWAIT") and read.take("WAIT"):
            read.next()
        columns = column_changes(Reader(read.found[read.at :]))
        reason, others = unlogged_by_alter(read, database)
        if ignore:
            reason = "ALTER IGNORE drops rows that break a unique key"
        known = _known(table)
        return Statement(
            Action.DEFINITION, "ALTER TABLE", tables=None if known is None else known + others, unlogged=reason,
            vacates=known if columns.moved and known is not None and known[0] not in others else (), columns=columns,
        )  # fmt: skip
    if kind in ("DATABASE", "SCHEMA") or kind in _HARMLESS_OBJECTS:
        return Statement(Action.HARMLESS, f"ALTER {kind}")
    return Statement(Action.UNKNOWN, f"ALTER {kind}", tables=None)


def _rename(read: Reader, database: str) -> Statement:
    kind = read.next().word
    if kind == "USER":
        return Statement(Action.HARMLESS, "RENAME USER")
    if kind not in ("TABLE", "TABLES"):
        return Statement(Action.UNKNOWN, f"RENAME {kind}", tables=None)
    read.take("IF", "EXISTS")
    found: list[Table] = []
    while (table := read.table(database)) is not None:
        found.append(table)
        if not read.take("NOWAIT") and read.take("WAIT"):
            read.next()
        if not (read.take("TO") or read.take_sign(",")):
            break
    complete = read.done and len(found) % 2 == 0
    return Statement(
        Action.DEFINITION, "RENAME TABLE", tables=tuple(found) if complete else None,
        unlogged="rows now belong to a table of another name", vacates=_vacated(found) if complete else (),
    )  # fmt: skip


def _vacated(pairs: list[Table]) -> tuple[Table, ...]:
    """Old and new names in turn: names that had a table before, and have none after."""
    olds, news = pairs[::2], pairs[1::2]
    had = [old for i, old in enumerate(olds) if old not in news[:i]]
    last = {name: i for i, pair in enumerate(zip(olds, news, strict=True)) for name in pair}
    return tuple(name for name in had if olds[last[name]] == name)


def _truncate(read: Reader, database: str) -> Statement:
    read.take("TABLE")
    return Statement(
        Action.DEFINITION, "TRUNCATE", tables=_known(read.table(database)), unlogged="all rows were removed"
    )


_DEFINITIONS = {
    "CREATE": _create, "DROP": _drop, "ALTER": _alter, "RENAME": _rename, "TRUNCATE": _truncate,
}  # fmt: skip


def _known(table: Table | None) -> tuple[Table, ...] | None:
    return None if table is None else (table,)


_MODIFIERS = frozenset({"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "QUICK", "INTO"})


def _written(verb: str, read: Reader, database: str) -> tuple[Table, ...] | None:
    """The one table that INSERT, REPLACE, UPDATE, DELETE or LOAD DATA writes; None where it is not that plain."""
    if verb not in ("INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD"):
        return None
    if verb == "LOAD":
        while not read.done and not read.take("INTO", "TABLE"):
            read.next()
        return _known(read.table(database))
    while read.peek().word in _MODIFIERS:
        read.next()
    if verb == "DELETE" and not read.take("FROM"):
        return None
    table = read.table(database)
    if table is None:
        return None
    if verb == "UPDATE":
        if read.peek().word != "SET":
            read.take("AS")
            read.next()
        return (table,) if read.take("SET") else None
    if verb == "DELETE" and (read.take_sign(",") or read.take("USING") or read.take_sign(".")):
        return None
    return (table,)


def shown(statement: Statement, sql: bytes, *, client_collation: int = 0, sql_mode: int | None = 0) -> str:
    """A statement on one line, for messages and notes, without any value that it holds.

    These texts end in manifests, in the meta database and in logs, where masked columns and passwords must not be. Of
    DML the verb and its tables are left. Of the others keywords, names and signs are: strings, numbers and comments
    are not.
    """
    if statement.action is Action.DATA:
        names = "" if not statement.tables else f" {', '.join(f'{d}.{t}' for d, t in statement.tables)}"
        return f"{statement.verb}{names} …"
    words: list[str] = []
    length = 0
    for token in tokens(decode(sql, client_collation), sql_mode or 0):
        if token.kind is Kind.SIGN and token.text in _QUOTES:
            # A quote that does not end: where strings begin and end cannot be told, from the first of them on.
            words[words.index("?") if "?" in words else len(words) :] = ["…"]
            break
        hidden = token.kind in (Kind.STRING, Kind.NUMBER) or (token.kind is Kind.WORD and token.text[0].isdigit())
        if token.kind is Kind.STRING and words and words[-1].lower() in _INTRODUCERS:
            words.pop()  # x'4142', b'01'
        words.append("?" if hidden else token.text)
        length += len(words[-1]) + 1
        if length > _SHOWN:
            words.append("…")
            break
    text = _CLOSE.sub(r"\1", " ".join(words)).encode("utf-8", "replace").decode()
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_SHOWN = 200
_QUOTES = frozenset("'\"`")
_INTRODUCERS = frozenset({"x", "b", "n"})
_CLOSE = re.compile(r" ?([.@]) ?| (?=[),;])|(?<=\() ")
