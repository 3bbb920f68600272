"""TLS with real servers: who is trusted, by what, and that the stream of the log is as protected as the rest."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.config import Source
from cdc_core.model.position import Position
from cdc_core.mysql import connections
from cdc_core.mysql.connections import connect, parse_url
from cdc_core.operations.check.findings import Findings, connected
from cdc_core.source.host.server_facts import end_position
from cdc_core.source.wire.log_reader import EndOfLog, LogReader
from cdc_core.targets.writing.load import open_session
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.setup_mysql import MYSQL
from tests.conftest import set_up
from tests.lab.certificates import Authority
from tests.lab.refusals import refusal
from tests.lab.shell import export

AWAY = "0.0.0.0"
HOSTS = ("localhost", "127.0.0.1", AWAY)
SHOP = Source(name="shop", connection="env:SHOP", server_id=7)


@dataclass(frozen=True)
class Server:
    sql: Any
    files: Path
    ours: Authority
    others: Authority

    @property
    def mysql(self) -> bool:
        return not self.sql.mariadb

    def shows(self, pair: tuple[Path, Path], authority: Path) -> None:
        """The server has this certificate and key from now on."""
        for path, name in zip((*pair, authority), ("cert.pem", "key.pem", "ca.pem"), strict=True):
            shutil.copy(path, self.files / name)
        self.query("ALTER INSTANCE RELOAD TLS" if self.mysql else "FLUSH SSL")

    def query(self, *statements: str) -> None:
        self.sql.run(*statements)

    def at(self, host: str, options: str = "", *, user: str = "", password: str = "") -> connections.Server:
        return parse_url(self.url(host, options, user=user, password=password), where="env:X")

    def url(self, host: str, options: str = "", *, user: str = "", password: str = "") -> str:
        login = f"{user or self.sql.user}:{password or self.sql.password}"
        return f"mysql://{login}@{host}:{self.sql.port}/?{options}"

    def account(self, password: str = "pw", more: str = "") -> str:
        """A new account, which the server has never seen log in."""
        name = f"u{uuid.uuid4().hex[:10]}"
        self.query(f"CREATE USER {name}@'%' IDENTIFIED BY '{password}' {more}", f"GRANT ALL ON *.* TO {name}@'%'")
        return name


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = tmp_path_factory.mktemp("tls")
    ours, others = Authority("ours", files, 1), Authority("others", files, 2)
    for path, name in zip((*ours.signs("server", HOSTS), ours.ca), ("cert.pem", "key.pem", "ca.pem"), strict=True):
        shutil.copy(path, files / name)
    options = {f"ssl-{name}": str(files / f"{name}.pem") for name in ("ca", "cert", "key")}
    if request.param == "mysql":
        set_up(MYSQL)
    start: Callable[..., Any] = MariaDb.start if request.param == "mariadb" else MySql.start
    with start(server_id=41, options=options) as sql:
        yield Server(sql, files, ours, others)


@pytest.fixture(autouse=True)
def _right_certificate(server: Server) -> None:
    server.shows(server.ours.signs("server", HOSTS), server.ours.ca)


def encrypted(address: connections.Server) -> bool:
    with connect(address, where="x") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        row = cursor.fetchone()
        return bool(row and row[1])


def code(address: connections.Server) -> str:
    return refusal(lambda: connect(address, where="x")).code


def test_the_right_authority_and_name_are_accepted(server: Server) -> None:
    for host, options in itertools.product(HOSTS, ("ssl_ca={}", "ssl_mode=VERIFY_CA&ssl_ca={}")):
        assert encrypted(server.at(host, options.format(server.ours.ca)))


def test_what_is_not_said_is_tls_where_the_server_has_it_and_plain_text_on_loopback(server: Server) -> None:
    connect(server.at("127.0.0.1"), where="x").close()  # the account's first login, where nobody is in between
    assert encrypted(server.at(AWAY))
    assert encrypted(server.at("127.0.0.1", "ssl_mode=REQUIRED"))
    assert not encrypted(server.at("127.0.0.1"))
    assert not encrypted(server.at(AWAY, "ssl_mode=DISABLED"))


def test_who_is_not_verified_beyond_loopback_is_warned_of(server: Server) -> None:
    connect(server.at("127.0.0.1"), where="x").close()
    for host, options, said in (
        (AWAY, "", "has not proven"),
        (AWAY, "ssl_mode=REQUIRED", "has not proven"),
        (AWAY, "ssl_mode=DISABLED", "plain text"),
        (AWAY, f"ssl_ca={server.ours.ca}", ""),
        ("127.0.0.1", "", ""),
    ):
        findings = Findings()
        export({"DB": server.url(host, options)})
        with connected(findings, "source shop", "env:DB") as connection:
            assert connection is not None
        warned = [finding.what for finding in findings.made if finding.status == "warn"]
        assert [said in text for text in warned] == ([True] if said else []), (host, options, warned)


CERTIFICATES: dict[str, Callable[[Server], tuple[Path, Path]]] = {
    "another authority": lambda server: server.others.signs("server", HOSTS),
    "expired": lambda server: server.ours.signs("old", HOSTS, expired=True),
    "another host's": lambda server: server.ours.signs("elsewhere", ("db.example", "10.0.0.1")),
    "without a name": lambda server: server.ours.signs("nameless"),
}


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_a_wrong_certificate_is_refused_and_no_attempt_is_made_without(server: Server, kind: str) -> None:
    if kind == "expired" and server.mysql:
        return  # MySQL does not load one
    server.shows(CERTIFICATES[kind](server), (server.others if kind == "another authority" else server.ours).ca)
    assert code(server.at("127.0.0.1", f"ssl_ca={server.ours.ca}")) == "connection.unproven"
    by_authority = server.at("127.0.0.1", f"ssl_mode=VERIFY_CA&ssl_ca={server.ours.ca}")
    if kind in ("another host's", "without a name"):
        assert encrypted(by_authority)
    else:
        assert code(by_authority) == "connection.unproven"
    assert encrypted(server.at("127.0.0.1", "ssl_mode=REQUIRED"))


def test_a_private_authority_is_not_among_the_systems(server: Server) -> None:
    assert code(server.at("localhost", "ssl_mode=VERIFY_IDENTITY")) == "connection.unproven"


def test_an_account_that_demands_a_client_certificate_gets_it(server: Server) -> None:
    user = server.account(more="REQUIRE X509")
    certificate, key = server.ours.signs("client")
    ca = f"ssl_ca={server.ours.ca}"
    assert encrypted(server.at("localhost", f"{ca}&ssl_cert={certificate}&ssl_key={key}", user=user, password="pw"))
    assert code(server.at("localhost", ca, user=user, password="pw")) == "connection.denied"


def test_an_accounts_first_login_works_where_the_server_is_verified_or_required(server: Server) -> None:
    """MySQL asks for the password itself then."""
    for options in (f"ssl_ca={server.ours.ca}", "ssl_mode=REQUIRED"):
        assert encrypted(server.at(AWAY, options, user=server.account(), password="pw"))
    connect(server.at("127.0.0.1", user=server.account(), password="pw"), where="x").close()


def test_an_accounts_first_login_is_refused_where_anybody_could_answer(server: Server) -> None:
    if not server.mysql:  # MariaDB never asks for the password itself
        connect(server.at(AWAY, "ssl_mode=DISABLED", user=server.account(), password="pw"), where="x").close()
        return
    for options in ("", "ssl_mode=DISABLED"):
        user = server.account()
        assert code(server.at(AWAY, options, user=user, password="pw")) == "connection.unproven"
        connect(server.at(AWAY, f"ssl_ca={server.ours.ca}", user=user, password="pw"), where="x").close()
        connect(server.at(AWAY, options, user=user, password="pw"), where="x").close()  # now the server knows it


def test_a_password_may_have_any_letters(server: Server) -> None:
    for password in ("pässwörd", "пароль", "🔑 %40"):
        user = server.account(password)
        for options in ("", f"ssl_ca={server.ours.ca}"):
            tls = server.at("127.0.0.1", options).tls
            connect(connections.Server("127.0.0.1", server.sql.port, user, password, tls), where="x").close()


def test_each_login_method_that_the_server_has_works(server: Server) -> None:
    for method in ("caching_sha2_password", "sha256_password") if server.mysql else ("mysql_native_password",):
        for host, options in (("127.0.0.1", ""), (AWAY, f"ssl_ca={server.ours.ca}"), (AWAY, "ssl_mode=REQUIRED")):
            name = f"u{uuid.uuid4().hex[:10]}"
            how = f"WITH {method} BY 'pw'" if server.mysql else f"VIA {method} USING PASSWORD('pw')"
            server.query(f"CREATE USER {name}@'%' IDENTIFIED {how}")
            connect(server.at(host, options, user=name, password="pw"), where="x").close()


def test_the_stream_of_the_log_and_the_bulk_connection_are_protected_alike(server: Server) -> None:
    address = server.at("localhost", f"ssl_ca={server.ours.ca}")
    server.query("CREATE DATABASE IF NOT EXISTS streamed", "CREATE TABLE IF NOT EXISTS streamed.t (a INT, b LONGTEXT)",
                 "INSERT INTO streamed.t VALUES (1, REPEAT('x', 3000000))")  # fmt: skip
    with connect(address, where="x") as connection:
        end = end_position(connection, 0)
    reader = LogReader(address, Position(0, end.file, 4), SHOP)
    seen = 0
    with suppress(EndOfLog), closing(reader):
        while True:
            seen = max([seen, *(event.start + event.header.length for event in reader.events(5.0))])
    assert seen == end.offset
    with open_session(address, "streamed", where="x") as bulk, bulk.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        row = cursor.fetchone()
        assert row is not None
        assert row[1]
    wrong = server.at("localhost", f"ssl_ca={server.others.ca}")
    assert refusal(lambda: LogReader(wrong, end, SHOP)).code == "connection.unproven"
    assert refusal(lambda: open_session(wrong, "streamed", where="x")).code == "connection.unproven"


def test_a_server_without_tls_is_refused_where_tls_was_asked_for(server: Server) -> None:
    if not server.mysql:
        with MariaDb.start(server_id=42, options={"skip-ssl": None, "ssl-cert": "", "ssl-key": ""}) as plain:
            _refused(lambda options: parse_url(f"{plain.url}/?{options}", where="x"), server.ours.ca)
        return
    (server.files / "cert.pem").write_text("none")
    with suppress(pymysql.err.MySQLError):
        server.query("ALTER INSTANCE RELOAD TLS NO ROLLBACK ON ERROR")
    _refused(lambda options: server.at("127.0.0.1", options), server.ours.ca)


def _refused(at: Callable[[str], connections.Server], ca: Path) -> None:
    for options in ("ssl_mode=REQUIRED", f"ssl_ca={ca}", "ssl_mode=VERIFY_IDENTITY"):
        assert code(at(options)) == "connection.unproven"
    connect(at("ssl_mode=PREFERRED"), where="x").close()
