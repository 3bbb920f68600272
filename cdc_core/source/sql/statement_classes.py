"""What a statement in the log is: transaction control, definition, data, or harmless.

A pure function of the statement's text; `statement_judge` has the rule that uses it. It must keep true that everything
not known to be harmless is UNKNOWN, DATA or an unlogged change. The rules for ALTER TABLE are in `alter_clauses`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from cdc_core.model.schema import Column, TableName
from cdc_core.source.sql.alter_clauses import AlterClauses, alter_clauses
from cdc_core.source.sql.client_text import UNKNOWN_CHARACTER, decode, is_known, lower_cased
from cdc_core.source.sql.modified_columns import STRICT
from cdc_core.source.sql.sql_tokens import Reader, Token, TokenKind, tokens


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
    """Accounts, privileges, views, routines, maintenance: it does not change any row of a table."""
    UNKNOWN = "unknown"

    __hash__ = object.__hash__  # Enum's own hash is slow


@dataclass(frozen=True, slots=True)
class Statement:
    """tables: those whose definition or data it touches; None where they are unknown, so that it may be any.

    For a HARMLESS statement that drops or redefines views, triggers or routines: these.
    database: one that is dropped entirely, else "". unlogged: why rows changed without row events, else "".
    modified: columns; if their values stayed as they were (modified_columns), no row changed despite `unlogged`.
    strict: whether the server refuses to change values so that they fit.
    name: of a savepoint, or the xid of an XA statement as `X'gtrid',X'bqual',format`.
    guarded: IF EXISTS, IF NOT EXISTS. vacates: names under which no table is left. columns: what ALTER TABLE did.
    passed: names that a table had only on its way, such as the third one where two tables change their names.
    names: for DATA, UNKNOWN, and a definition that runs a query (`queries`): every name in its text that may be a
    table, view or routine, `b` in the default database and each `a.b`: perhaps too many, never too few.
    drops_constraint: it may drop a foreign key.
    cascades: a definition with a foreign key by which the server changes rows of the table itself.
    versioning: a definition that adds system versioning to a table, or drops it.
    union: the tables that a MERGE table unites from here on, where the statement says so.
    temporary: a TRUNCATE, perhaps of a temporary table.
    """

    action: Action
    verb: str
    tables: tuple[TableName, ...] | None = ()
    database: str = ""
    unlogged: str = ""
    name: str = ""
    guarded: bool = False
    vacates: tuple[TableName, ...] = ()
    passed: tuple[TableName, ...] = ()
    columns: AlterClauses | None = None
    names: frozenset[TableName] = frozenset()
    queries: bool = False
    drops_constraint: bool = False
    cascades: bool = False
    versioning: bool = False
    union: tuple[TableName, ...] = ()
    temporary: bool = False
    modified: tuple[Column, ...] = ()
    strict: bool = False


_HARMLESS_VERBS = frozenset({
    "GRANT", "REVOKE", "FLUSH", "ANALYZE", "OPTIMIZE", "CHECK", "CHECKSUM", "INSTALL", "UNINSTALL", "SHUTDOWN", "KILL",
    "CACHE", "LOCK", "UNLOCK", "PURGE", "BACKUP", "SIGNAL", "RESIGNAL", "BINLOG", "RELEASE", "CHANGE", "RESET", "START",
    "STOP", "CLONE", "RESTART", "HELP", "USE", "SHOW", "PREPARE", "DEALLOCATE", "GET",
})  # fmt: skip
_HARMLESS_SETS = frozenset({"PASSWORD", "ROLE", "DEFAULT"})
_EXPLAINED = ("EXPLAIN", "DESCRIBE", "DESC", "ANALYZE")
"""Prefixes of a statement: MariaDB's `ANALYZE UPDATE ...` runs the statement."""
_OF_TABLES = frozenset({"TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"})
_DATA_VERBS = frozenset({
    "INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "CALL", "DO", "WITH", "SELECT", "HANDLER", "EXECUTE", "VALUES",
    "TABLE", "MERGE",
})  # fmt: skip
_HARMLESS_OBJECTS = frozenset({
    "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "TABLESPACE", "LOGFILE", "PACKAGE",
    "RESOURCE", "LIBRARY", "INSTANCE", "UNDO", "SEQUENCE", "CATALOG", "SYNONYM", "MASKING", "KEYRING",
})  # fmt: skip
_ROUTINES = frozenset({"VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "PACKAGE"})
"""Objects that may contain statements, which run as part of another statement."""


def classify(
    sql: bytes,
    database: str,
    *,
    client_collation: int = 0,
    sql_mode: int | None = None,
    lower_case: bool = False,
    mariadb: bool = True,
    temporary: bool = False,
) -> Statement:
    """Classifies a statement that was run with `database` as the default database.

    mariadb:    the server that ran it is a MariaDB.
    lower_case: the server compares names of tables and databases in lower case; so the names in the answer are.
    temporary:  the event says that temporary tables are used, by the statement or before it in the same routine.
    """
    text = decode(sql, client_collation)
    if text is None:
        return Statement(Action.UNKNOWN, "A statement", tables=None, names=frozenset([("", UNKNOWN_CHARACTER)]))
    words = tokens(_GENERATED_DROP.sub(r"\1\2", text), sql_mode or 0, mariadb_code=mariadb)
    if lower_case:
        words = [replace(word, text=lower_cased(word.text)) if word.names else word for word in words]
    statement = _classify(words, lower_cased(database) if lower_case else database)
    if statement.modified and (sql_mode or 0) & STRICT:
        statement = replace(statement, strict=True)
    return replace(statement, temporary=True) if temporary and statement.verb == "TRUNCATE" else statement


_GENERATED_DROP = re.compile(
    r"\A(DROP (?:TEMPORARY )?TABLE (?:IF EXISTS )?)/\*.*?\*/(.*/\* generated by server \*/)\Z", re.DOTALL
)
"""MariaDB writes its own text of DROP TABLE. It copies a comment of the original, even if that is code (`/*! a, */`),
before the names of all dropped tables."""


def _classify(found: Sequence[Token], database: str) -> Statement:
    read = Reader(list(found))
    while read.take_sign("("):
        pass
    verb = read.next().word
    if verb == "BEGIN" or (verb == "START" and read.peek().word == "TRANSACTION"):
        return Statement(Action.BEGIN, verb)
    if verb == "COMMIT":
        return Statement(Action.COMMIT, verb)
    if verb == "ROLLBACK":
        return _rollback(read)
    if verb == "SAVEPOINT":
        return Statement(Action.SAVEPOINT, verb, name=lower_cased(read.next().text))
    if verb == "XA":
        return _xa(read)
    if verb == "SET" and read.take("STATEMENT"):
        while not read.done and not read.take("FOR"):
            read.next()
        return replace(_classify(read.found[read.at :], database), modified=())  # its sql_mode may be another
    if verb in _DEFINITIONS:
        versioning = any(one.word == "SYSTEM" and other.word == "VERSIONING" for one, other in pairwise(found))
        statement = replace(
            _DEFINITIONS[verb](read, database),
            cascades=_cascades(found),
            versioning=versioning,
        )
        if statement.action is Action.UNKNOWN or statement.queries:
            statement = replace(statement, names=_names(found, database))
        return statement
    if verb in _EXPLAINED and read.peek().word not in _OF_TABLES:
        return Statement(Action.DATA, verb, tables=None, names=_names(found, database))
    if verb == "LOAD" and read.peek().word == "INDEX":
        return Statement(Action.HARMLESS, "LOAD INDEX")
    if verb in _DATA_VERBS:
        written = _written(verb, read, database)
        return Statement(Action.DATA, verb, tables=written, names=_names(found, database))
    if verb in _HARMLESS_VERBS or (verb == "SET" and read.peek().word in _HARMLESS_SETS):
        return Statement(Action.HARMLESS, verb)
    return Statement(Action.UNKNOWN, verb or "(none)", tables=None, names=_names(found, database))


def _names(found: Sequence[Token], database: str) -> frozenset[TableName]:
    """Every name in a text with this default database; see Statement."""
    names: set[TableName] = set()
    at = 0
    while at < len(found):
        if found[at].names:
            path = [found[at].text]
            while at + 2 < len(found) and found[at + 1] == _DOT:
                path.append(found[at + 2].text)
                at += 2
            names |= {(database, path[0]), *pairwise(path)}
        at += 1
    return frozenset(names)


_DOT = Token(TokenKind.SIGN, ".")


def _cascades(found: Sequence[Token]) -> bool:
    """Whether a foreign key has ON DELETE or ON UPDATE with CASCADE, SET NULL or SET DEFAULT."""
    words = [token.word for token in found]
    if "REFERENCES" not in words:
        return False
    return any(
        words[i] == "ON" and words[i + 1] in ("DELETE", "UPDATE") and words[i + 2] in ("CASCADE", "SET")
        for i in range(len(words) - 2)
    )


def _rollback(read: Reader) -> Statement:
    read.take("WORK")
    if read.take("TO"):
        read.take("SAVEPOINT")
        return Statement(Action.ROLLBACK_TO, "ROLLBACK TO", name=lower_cased(read.next().text))
    return Statement(Action.ROLLBACK, "ROLLBACK")


_XA_ACTIONS = {
    "START": Action.XA_START, "BEGIN": Action.XA_START, "END": Action.XA_END, "COMMIT": Action.XA_COMMIT,
    "ROLLBACK": Action.XA_ROLLBACK,
}  # fmt: skip


def _xa(read: Reader) -> Statement:
    """`XA COMMIT X'6131',X'',1`: the server writes all three parts, the texts in hex."""
    action = _XA_ACTIONS.get(read.next().word)
    if action is None:
        return Statement(Action.UNKNOWN, "XA", tables=None)
    parts = [part for part in read.clauses() if part]
    texts = [_xid_part(part) for part in parts]
    gtrid, bqual, number = (texts + ["", "", "1"][len(texts) :])[:3]
    return Statement(action, "XA", name=f"X'{gtrid}',X'{bqual}',{number}")


def _xid_part(part: list[Token]) -> str:
    if part[0].word == "X" and len(part) > 1:
        return part[1].text.lower()
    if part[0].kind is TokenKind.STRING:
        return part[0].text.encode().hex()
    return part[0].text


_BEFORE_ALTERED = frozenset({
    "DEFINER", "ALGORITHM", "SQL", "JSON", "RELATIONAL", "DUALITY", "MATERIALIZED", "EXTERNAL",
})  # fmt: skip
"""Words between ALTER and the kind of object; for CREATE with those below."""
_BEFORE_CREATED = _BEFORE_ALTERED | {
    "AGGREGATE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "PUBLIC", "ANY", "STATIC",
}  # fmt: skip


def _create(read: Reader, database: str) -> Statement:
    replaces = read.take("OR", "REPLACE")
    external = False
    while (word := read.peek().word) in _BEFORE_CREATED:
        read.next()
        external = external or word == "EXTERNAL"
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
        guarded = read.take("IF", "NOT", "EXISTS")
        table = read.table(database)
        if temporary:
            return Statement(Action.HARMLESS, "CREATE TEMPORARY TABLE")
        union = _union(read, database)
        queries = _has_query(read)
        reason = "CREATE OR REPLACE drops the rows that the table had" if replaces else ""
        if external:
            reason = "its rows come from a file"
        elif queries:
            reason = "a query filled it, and the log does not show with which rows"
        verb = "CREATE OR REPLACE TABLE" if replaces else "CREATE TABLE"
        return Statement(
            Action.DEFINITION,
            verb,
            tables=_known(table),
            unlogged=reason,
            queries=queries,
            guarded=guarded,
            union=union,
        )
    if kind == "INDEX":
        return _index("CREATE INDEX", read, database)
    if kind in ("DATABASE", "SCHEMA"):
        if replaces:
            reason = "CREATE OR REPLACE drops the tables that the database had"
            return _without_database("CREATE OR REPLACE DATABASE", _name_after_exists(read), reason)
        return Statement(Action.HARMLESS, f"CREATE {kind}")
    if kind in _HARMLESS_OBJECTS:
        redefined = _objects(kind, read, database) if replaces else ()
        return Statement(Action.HARMLESS, f"CREATE {kind}", tables=redefined)
    return Statement(Action.UNKNOWN, f"CREATE {kind}", tables=None)


def _union(read: Reader, database: str) -> tuple[TableName, ...]:
    """`UNION = (t, b.u)`, an option of MERGE tables. The reader stays where it is."""
    for at in range(read.at, len(read.found)):
        ahead = Reader(read.found[at:])
        if ahead.take("UNION"):
            ahead.take_sign("=")
            if ahead.take_sign("(") and (listed := _tables(ahead, database)) and ahead.take_sign(")"):
                return listed
    return ()


def _has_query(read: Reader) -> bool:
    """Whether the rest of a CREATE TABLE contains a query that fills the table, in parentheses or not."""
    while not read.done:
        word = read.next().word
        if word == "SELECT" or (word in ("TABLE", "VALUES", "WITH") and _begins_query(read, word)):
            return True
    return False


def _begins_query(read: Reader, word: str) -> bool:
    """`TABLE t`, `VALUES ROW(...)`, `WITH x AS (...)`; not `WITH SYSTEM VERSIONING`, `WITH PARSER`, or the values of a
    partition."""
    after = read.peek(1)
    if word == "VALUES":
        return read.peek().word not in ("LESS", "IN")
    if word == "WITH":
        return (
            read.peek().word == "RECURSIVE"
            or after.word == "AS"
            or (after.kind is TokenKind.SIGN and after.text == "(")
        )
    return True


def _objects(kind: str, read: Reader, database: str) -> tuple[TableName, ...] | None:
    """The views, triggers or routines that a statement drops or redefines; empty for other kinds."""
    if kind not in _ROUTINES:
        return ()
    read.take("BODY")
    if read.take("IF"):
        read.take("NOT")
        read.take("EXISTS")
    return _tables(read, database)


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
    while read.take_any("ONLINE", "OFFLINE", "MATERIALIZED", "EXTERNAL", "PUBLIC"):
        pass
    kind = read.next().word
    if kind in ("TABLE", "TABLES"):
        guarded = read.take("IF", "EXISTS")
        dropped = _tables(read, database)
        if temporary:
            return Statement(Action.HARMLESS, "DROP TEMPORARY TABLE")
        if not _ends(read):
            dropped = None
        return Statement(Action.DEFINITION, "DROP TABLE", tables=dropped, guarded=guarded, vacates=dropped or ())
    if kind in ("DATABASE", "SCHEMA"):
        return _without_database("DROP DATABASE", _name_after_exists(read))
    if kind == "INDEX":
        return _index("DROP INDEX", read, database)
    if kind in _HARMLESS_OBJECTS or (kind == "PREPARE"):
        return Statement(Action.HARMLESS, f"DROP {kind}", tables=_objects(kind, read, database))
    return Statement(Action.UNKNOWN, f"DROP {kind}", tables=None)


def _without_database(verb: str, name: str, unlogged: str = "") -> Statement:
    if not is_known(name):
        return Statement(Action.DEFINITION, verb, tables=None, unlogged=unlogged)
    return Statement(Action.DEFINITION, verb, database=name, unlogged=unlogged)


def _tables(read: Reader, database: str) -> tuple[TableName, ...] | None:
    names: list[TableName] = []
    while (table := read.table(database)) is not None:
        names.append(table)
        if not read.take_sign(","):
            return tuple(names)
    return None


def _index(verb: str, read: Reader, database: str) -> Statement:
    primary = False
    while not read.done:
        if read.take("ON"):
            reason = "the primary key changed" if primary and verb == "DROP INDEX" else ""
            return Statement(Action.DEFINITION, verb, tables=_known(read.table(database)), unlogged=reason)
        primary = read.next().text.upper() == "PRIMARY" or primary
    return Statement(Action.UNKNOWN, verb, tables=None)


def _alter(read: Reader, database: str) -> Statement:
    while read.peek().word in _BEFORE_ALTERED:
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
        union = _union(read, database)
        clauses = alter_clauses(read, database)
        reason = "; ".join(dict.fromkeys(clauses.reasons))
        if ignore:
            reason = "ALTER IGNORE drops rows that break a unique key"
        known = _known(table)
        others = tuple(clause for clause in clauses.others if clause is not None)
        return Statement(
            Action.DEFINITION,
            "ALTER TABLE",
            tables=None if known is None or None in clauses.others else known + others,
            unlogged=reason,
            modified=() if ignore else clauses.kept_columns,
            drops_constraint=clauses.drops_constraint,
            vacates=known if clauses.moved and known is not None and known[0] not in others else (),
            columns=clauses,
            union=union,
        )
    if kind in ("DATABASE", "SCHEMA") or kind in _HARMLESS_OBJECTS:
        return Statement(Action.HARMLESS, f"ALTER {kind}", tables=_objects(kind, read, database))
    return Statement(Action.UNKNOWN, f"ALTER {kind}", tables=None)


def _rename(read: Reader, database: str) -> Statement:
    kind = read.next().word
    if kind == "USER":
        return Statement(Action.HARMLESS, "RENAME USER")
    if kind not in ("TABLE", "TABLES"):
        return Statement(Action.UNKNOWN, f"RENAME {kind}", tables=None)
    read.take("IF", "EXISTS")
    names: list[TableName] = []
    while (table := read.table(database)) is not None:
        names.append(table)
        if not read.take("NOWAIT") and read.take("WAIT"):
            read.next()
        if not (read.take("TO") or read.take_sign(",")):
            break
    complete = read.done and len(names) % 2 == 0
    vacates, passed = _left(names) if complete else ((), ())
    return Statement(
        Action.DEFINITION,
        "RENAME TABLE",
        tables=tuple(names) if complete else None,
        unlogged="rows now belong to a table of another name",
        vacates=vacates,
        passed=passed,
    )


def _left(pairs: list[TableName]) -> tuple[tuple[TableName, ...], tuple[TableName, ...]]:
    """pairs: old and new names in turn. Returns the names that have no table after: those that had one before, and the
    others."""
    olds, news = pairs[::2], pairs[1::2]
    had = [old for i, old in enumerate(olds) if old not in news[:i]]
    last = {name: i for i, pair in enumerate(zip(olds, news, strict=True)) for name in pair}
    left = [name for name in dict.fromkeys(pairs) if olds[last[name]] == name]
    return tuple(name for name in left if name in had), tuple(name for name in left if name not in had)


def _truncate(read: Reader, database: str) -> Statement:
    read.take("TABLE")
    table = read.table(database)
    if not _ends(read):
        table = None
    return Statement(Action.DEFINITION, "TRUNCATE", tables=_known(table), unlogged="all rows were removed")


def _ends(read: Reader) -> bool:
    """Whether only the known last words of DROP TABLE and TRUNCATE are left. If there is more, names were misread."""
    if not read.take("NOWAIT") and read.take("WAIT"):
        read.next()
    read.take_any("RESTRICT", "CASCADE")
    if read.take_any("DROP", "REUSE"):
        read.take("STORAGE")
    while read.take_sign(";"):
        pass
    return read.done


def _repair(read: Reader, database: str) -> Statement:
    """On a MyISAM or Aria table it drops the rows that it cannot read."""
    read.take_any("NO_WRITE_TO_BINLOG", "LOCAL")
    if read.take("VIEW"):
        return Statement(Action.HARMLESS, "REPAIR VIEW")
    if not read.take_any("TABLE", "TABLES"):
        return Statement(Action.UNKNOWN, "REPAIR", tables=None)
    return Statement(
        Action.DEFINITION,
        "REPAIR TABLE",
        tables=_tables(read, database),
        unlogged="REPAIR drops rows that it cannot read",
    )


_DEFINITIONS = {
    "CREATE": _create, "DROP": _drop, "ALTER": _alter, "RENAME": _rename, "TRUNCATE": _truncate, "REPAIR": _repair,
}  # fmt: skip


def _known(table: TableName | None) -> tuple[TableName, ...] | None:
    return None if table is None else (table,)


_MODIFIERS = frozenset({"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "QUICK", "INTO"})


def _written(verb: str, read: Reader, database: str) -> tuple[TableName, ...] | None:
    """The one table that INSERT, REPLACE, UPDATE, DELETE or LOAD DATA writes; None where that is not obvious."""
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
