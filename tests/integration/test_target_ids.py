"""Counters that give out equal ids in several shards, on real servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cdc_core.targets.tables.auto_increment import meeting_counters
from tests.integration.test_target_session import with_globals
from tests.lab.databases import own_database
from tests.lab.shell import export


def test_counters_meet_unless_the_servers_keep_them_apart(mysql9: Any, mariadb_target: Any) -> None:
    """Four shards, two on each server, of a table whose key does not say the shard."""
    servers = (mysql9, mariadb_target)
    with ExitStack() as stack:
        places = []
        for number, server in enumerate(servers):
            export({f"S{number}": server.url})
            name = stack.enter_context(own_database(server))
            places += [(f"env:S{number}", name, f"t_{t}") for t in range(2)]
            server.run(*(f"CREATE TABLE {name}.t_{t} (id BIGINT UNSIGNED PRIMARY KEY)" for t in range(2)))
        assert meeting_counters(places) == ()
        for place, database, table in places:
            server = servers[place == "env:S1"]
            server.run(f"ALTER TABLE {database}.{table} MODIFY id BIGINT UNSIGNED AUTO_INCREMENT")
        assert sorted(meeting_counters(places)) == sorted(".".join(place[1:]) for place in places)
        one_each = [places[0], places[2]]
        assert len(meeting_counters(one_each)) == 2
        for number, server in enumerate(servers, 1):
            apart = {"auto_increment_increment": "2", "auto_increment_offset": str(number)}
            stack.enter_context(with_globals(server, apart))
        assert meeting_counters(one_each) == ()
        assert len(meeting_counters(places)) == 4  # two on each server
