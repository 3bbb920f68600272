"""MERGE tables (ENGINE=MRG_MyISAM): views over MyISAM tables that rows can be written through.

The log has such rows under the name of the MERGE table only, and a TRUNCATE of it names no other. So neither a MERGE
table nor a table that one unites can be captured: where a stream opens, the server is asked for those that there are;
from there on the log says which are defined.
"""

from __future__ import annotations

import logging
import re

import pymysql

from cdc_core.errors import NeverCaptured, Refused
from cdc_core.model.schema import TableName
from cdc_core.mysql.connections import answers, one_line, quote
from cdc_core.source.host.server_facts import as_text, query

log = logging.getLogger(__name__)


ENGINE = "MRG_MYISAM"
NO_ROWS_OF_ITS_OWN = "a MERGE table: it shows the rows of other tables, which change past it"


def merge_table(database: str, table: str) -> Refused:
    """The error for a captured MERGE table: rows that are written to the united tables are not logged as rows of it."""
    return NeverCaptured(
        f"{database}.{table} is {NO_ROWS_OF_ITS_OWN}.",
        where=f"{database}.{table}",
        remedy="exclude the table (tables.exclude) and capture the tables that it unites",
    )


def united_table(name: TableName, merge: TableName, where: str) -> Refused:
    """The error for a captured table that a MERGE table unites."""
    return NeverCaptured(
        f"Rows of {'.'.join(name)} can be written through {'.'.join(merge)}, a MERGE table that unites it: the log has "
        "them under that name only.",
        where=where,
        remedy="drop the MERGE table, and copy the tables that it united (`lockstep snapshot`); or exclude these "
        "(tables.exclude)",
    )


@answers("source")
def united_tables(connection: pymysql.Connection) -> dict[TableName, tuple[TableName, ...]]:
    """Every MERGE table that the account sees, with the tables that it unites; not one that is broken."""
    united = {}
    for row in query(
        connection, f"SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE ENGINE = '{ENGINE}'"
    ):
        name = as_text(row[0]), as_text(row[1])
        try:
            united[name] = union_of(connection, *name)
        except (pymysql.err.MySQLError, Refused) as error:
            why = one_line(str(error))
            log.warning(
                "which tables the MERGE table %s unites is unknown, as it cannot be read: %s", quote(*name), why
            )
    return united


def union_of(connection: pymysql.Connection, database: str, table: str) -> tuple[TableName, ...]:
    """The tables that a MERGE table unites, by its definition."""
    text = as_text(query(connection, f"SHOW CREATE TABLE {quote(database, table)}")[0][1])
    listed = re.search(r"[ ]UNION=\(((?:`(?:[^`]|``)*`[.,]?)*)\)[^\n]*\Z", text)
    parts = [] if listed is None else re.findall(r"`((?:[^`]|``)*)`(\.?)", listed[1])
    names: list[TableName] = []
    within = database
    for part, dot in parts:
        name = part.replace("``", "`")
        if dot:
            within = name
        else:
            names.append((within, name))
            within = database
    return tuple(names)
