"""A primary and its replica, both real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pymysql
import pytest

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.sql_server import SqlServer
from tests.lab.databases import drop_database, fresh_name
from tests.lab.waiting import wait_until

REPLICATED = {"log-slave-updates": None, "gtid-domain-id": "0"}
CHANGED = {
    "mariadb": ("SET GLOBAL slave_parallel_threads = DEFAULT", "SET GLOBAL replicate_ignore_table = ''",
                "SET GLOBAL slave_exec_mode = STRICT"),
    "mysql": ("SET GLOBAL replica_preserve_commit_order = ON", "SET GLOBAL replica_exec_mode = STRICT",
              "CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ()"),
}  # fmt: skip
"""Sets back what tests change of servers."""


@contextmanager
def semi_synchronous(server: SqlServer) -> Iterator[None]:
    """Until the block ends, a commit is logged, and then waits for a replica that does not come."""
    switch = "rpl_semi_sync_master" if server.mariadb else "rpl_semi_sync_source"
    if server.mariadb:
        server.run("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'")
    elif not server.run(f"SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = '{switch}'"):
        server.run(f"INSTALL PLUGIN {switch} SONAME 'semisync_source.so'")
    server.run(f"SET GLOBAL {switch}_timeout = 600000", f"SET GLOBAL {switch}_enabled = ON")
    try:
        yield
    finally:
        server.run(f"SET GLOBAL {switch}_enabled = OFF")


@dataclass
class Pair:
    """flavor: 'mariadb' or 'mysql'. gtids: whether positions know GTIDs."""

    flavor: str
    primary: SqlServer
    replica: SqlServer
    gtids: bool = True
    name: str = field(default_factory=fresh_name)

    def replicate(self) -> None:
        p = self.primary
        to = f"HOST='{p.host}', {{0}}_PORT={p.port}, {{0}}_USER='root', {{0}}_PASSWORD='{p.password}'"
        if self.flavor == "mariadb":
            self.replica.run(f"CHANGE MASTER TO MASTER_{to.format('MASTER')}, MASTER_USE_GTID=slave_pos, "
                "MASTER_SSL_VERIFY_SERVER_CERT=0", "START SLAVE")  # fmt: skip
        else:
            auto = "SOURCE_AUTO_POSITION=1" if self.gtids else "SOURCE_LOG_FILE='binlog.000001', SOURCE_LOG_POS=4"
            self.replica.run(f"CHANGE REPLICATION SOURCE TO SOURCE_{to.format('SOURCE')}, {auto}, "
                "GET_SOURCE_PUBLIC_KEY=1", "START REPLICA")  # fmt: skip

    def begin(self, rows: int = 0) -> None:
        """As if both servers had just been set up, with an empty log: the replica follows, and has the table `t`."""
        words = {"mariadb": ("SLAVE", "RESET MASTER"), "mysql": ("REPLICA", "RESET BINARY LOGS AND GTIDS")}
        word, reset = words[self.flavor]
        for server in (self.replica, self.primary):
            if server.pid is None:
                server.restart()
            server.run(f"STOP {word}", f"RESET {word} ALL", *CHANGED[self.flavor])
            drop_database(server, self.name)
            server.run("DROP USER IF EXISTS poor", reset)
            if self.flavor == "mariadb":
                server.run("SET GLOBAL gtid_slave_pos = ''")
        self.name = fresh_name()
        self.replicate()
        self.primary.run(f"CREATE DATABASE {self.name}", f"CREATE TABLE {self.name}.t (id INT PRIMARY KEY, v INT)")
        write(self.primary, self.name, 1, rows)
        self.caught_up()

    def executed(self, server: SqlServer) -> str:
        question = "SELECT @@GLOBAL.gtid_binlog_pos" if self.flavor == "mariadb" else "SELECT @@GLOBAL.gtid_executed"
        return str(server.run(question)[0][0])

    def caught_up(self) -> None:
        newest = self.primary.run("SELECT COALESCE(MAX(id), 0) FROM t", database=self.name)

        def has_newest() -> bool:
            with suppress(pymysql.err.MySQLError):
                return self.replica.run("SELECT COALESCE(MAX(id), 0) FROM t", database=self.name) == newest
            return False

        wait_until(has_newest)

    def promote(self) -> None:
        word = "SLAVE" if self.flavor == "mariadb" else "REPLICA"
        self.replica.run(f"STOP {word}", f"RESET {word} ALL")

    def close(self) -> None:
        self.primary.close()
        self.replica.close()


def start(request: pytest.FixtureRequest, kind: str) -> Pair:
    if kind.startswith("mariadb"):
        servers = [MariaDb.start(server_id=number, options=REPLICATED) for number in (71, 72)]
        return Pair("mariadb", *servers)
    request.getfixturevalue("mysql9")
    from examples.sandbox.mysql import MySql

    off = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"} if kind.endswith("without GTIDs") else {}
    servers = [MySql.start(server_id=number, options=off) for number in (73, 74)]
    return Pair("mysql", *servers, gtids=not off)


def write(server: SqlServer, database: str, first: int, count: int) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        for number in range(first, first + count):
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0)")
            cursor.execute(f"UPDATE t SET v = v + {number} WHERE id % 7 = {number % 7}")
            if number % 5 == 0:
                cursor.execute(f"DELETE FROM t WHERE id = {number - 3}")
            connection.commit()
