"""Counters by which the shards of a table will give out equal ids.

A UNIQUE key holds within one table. Where it does not contain the shard key, nothing keeps two shards from having the
same value: one table, to which rows may be carried back, cannot hold both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from cdc_core.mysql.connections import resolve
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.writing.load import altering_session

Place = tuple[str, str, str]
"""A server, as the pipeline file names it, a database, and a table."""


def meeting_counters(places: Sequence[Place]) -> tuple[str, ...]:
    """The tables of one logical table whose AUTO_INCREMENT gives out ids that another's gives out, too, as
    the servers are set up.

    Raises what connections.connect raises, and what target_faults makes of the servers' errors.
    """
    steps: dict[tuple[str, str], tuple[str, int, int]] = {}
    for reference in dict.fromkeys(reference for reference, _, _ in places):
        with altering_session(resolve(reference), reference) as session, session.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset")
            step, offset = cursor.fetchone() or (1, 1)
            for database in dict.fromkeys(database for server, database, _ in places if server == reference):
                tables = [table for server, name, table in places if (server, name) == (reference, database)]
                facts = table_facts(session, database, tables)
                steps |= {
                    (reference, fact.name): (fact.name, int(step), int(offset))
                    for fact in facts.values()
                    if any(column.counted for column in fact.columns)
                }
    listed = list(steps.values())
    return tuple(
        name
        for at, (name, step, offset) in enumerate(listed)
        if any(
            (offset - other_offset) % gcd(step, other_step) == 0
            for other, (_, other_step, other_offset) in enumerate(listed)
            if other != at
        )
    )
