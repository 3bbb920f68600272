"""A primary and its replica, both real."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.sql_server import SqlServer

PATIENCE_S = 60
REPLICATED = {"log-slave-updates": None, "gtid-domain-id": "0"}


def run(server: SqlServer, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
    with server.connect(database, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@dataclass
class Pair:
    """flavor: 'mariadb' or 'mysql'. gtids: whether positions know GTIDs."""

    flavor: str
    primary: SqlServer
    replica: SqlServer
    gtids: bool = True
    name: str = field(default_factory=lambda: f"f_{uuid.uuid4().hex[:10]}")

    def replicate(self) -> None:
        p = self.primary
        to = f"HOST='{p.host}', {{0}}_PORT={p.port}, {{0}}_USER='root', {{0}}_PASSWORD='{p.password}'"
        if self.flavor == "mariadb":
            run(self.replica, f"CHANGE MASTER TO MASTER_{to.format('MASTER')}, MASTER_USE_GTID=slave_pos, "
                "MASTER_SSL_VERIFY_SERVER_CERT=0", "START SLAVE")  # fmt: skip
        else:
            auto = "SOURCE_AUTO_POSITION=1" if self.gtids else "SOURCE_LOG_FILE='binlog.000001', SOURCE_LOG_POS=4"
            run(self.replica, f"CHANGE REPLICATION SOURCE TO SOURCE_{to.format('SOURCE')}, {auto}, "
                "GET_SOURCE_PUBLIC_KEY=1", "START REPLICA")  # fmt: skip

    def executed(self, server: SqlServer) -> str:
        question = "SELECT @@GLOBAL.gtid_binlog_pos" if self.flavor == "mariadb" else "SELECT @@GLOBAL.gtid_executed"
        return str(run(server, question)[0][0])

    def caught_up(self) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        newest = run(self.primary, "SELECT COALESCE(MAX(id), 0) FROM t", database=self.name)
        while True:
            try:
                if run(self.replica, "SELECT COALESCE(MAX(id), 0) FROM t", database=self.name) == newest:
                    return
            except pymysql.err.MySQLError:
                pass
            assert time.monotonic() < give_up_s, "the replica does not follow"
            time.sleep(0.05)

    def promote(self) -> None:
        word = "SLAVE" if self.flavor == "mariadb" else "REPLICA"
        run(self.replica, f"STOP {word}", f"RESET {word} ALL")

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
