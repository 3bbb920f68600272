"""The login against a server that means harm: it gets neither the password nor a file, and nobody waits for ever."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_core.mysql import connections
from cdc_core.mysql.connections import connect, parse_url
from cdc_core.source.host.server_facts import query
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.writing.load import open_session
from examples.sandbox.tls import CERTIFICATE, KEY, write_certificate
from tests.lab.hostile_server import FakeServer, Login, packet
from tests.lab.origin import Origin
from tests.lab.refusals import refusal

PASSWORD = "Pa55-w0rd-of-the-account"
AWAY, HERE = "0.0.0.0", "127.0.0.1"
QUICK = "connect_timeout=0.5&read_timeout=1&write_timeout=1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    write_certificate(directory)
    return directory


def url(server: FakeServer, host: str = HERE, options: str = "") -> connections.Server:
    return parse_url(f"mysql://cdc:{PASSWORD}@{host}:{server.port}/?{QUICK}{options}", where="env:X")


def attempt(login: Login, host: str = HERE, options: str = "") -> tuple[str, bool]:
    """The code of the refusal, and whether the server learned the password."""
    with FakeServer(login) as server:
        error = refusal(lambda: connect(url(server, host, options), where="source shop"))
        assert PASSWORD not in str(error)
        return error.code, server.knows(PASSWORD)


@pytest.mark.parametrize(
    "options", ["ssl_mode=REQUIRED", "ssl_mode=VERIFY_IDENTITY", "ssl_ca={ca}", "ssl_mode=VERIFY_CA&ssl_ca={ca}"]
)
@pytest.mark.parametrize("asks", ["", "mysql_clear_password"])
def test_a_server_that_takes_tls_away_learns_nothing(certificate: Path, options: str, asks: str) -> None:
    chosen = "&" + options.format(ca=certificate / CERTIFICATE)
    with FakeServer(Login(asks=asks)) as server:
        error = refusal(lambda: connect(url(server, AWAY, chosen), where="source shop"))
        assert error.code == "connection.unproven"
        assert not server.received, "not even the account's name"


CLEAR = {
    "mysql_clear_password": Login(asks="mysql_clear_password"),
    "dialog": Login(asks="dialog", prompt=b"\x02Password: "),
    "mysql_old_password": Login(asks="mysql_old_password"),
}


@pytest.mark.parametrize("host", [HERE, AWAY])
@pytest.mark.parametrize("method", CLEAR)
def test_the_password_in_clear_goes_to_no_server_that_has_not_proven_itself(method: str, host: str) -> None:
    assert attempt(CLEAR[method], host) == ("connection.unproven", False)


FULL = {
    "caching_sha2_password": Login("caching_sha2_password", more=(b"\x04",)),
    "switched to caching_sha2": Login(asks="caching_sha2_password", more=(b"\x04",)),
    "sha256_password": Login(asks="sha256_password"),
    "sha256_password in the greeting": Login("sha256_password", asks="sha256_password"),
}


@pytest.mark.parametrize("options", ["", "&ssl_mode=DISABLED", "&ssl_mode=PREFERRED"])
@pytest.mark.parametrize("method", FULL)
def test_a_key_that_the_server_brings_along_gets_no_password_beyond_loopback(method: str, options: str) -> None:
    assert attempt(FULL[method], AWAY, options) == ("connection.unproven", False)


@pytest.mark.parametrize("method", [*CLEAR, *FULL])
def test_tls_with_any_certificate_gets_no_password_where_nobody_asked_for_that(certificate: Path, method: str) -> None:
    login = {**CLEAR, **FULL}[method]
    with_tls = Login(login.plugin, login.asks, login.more, login.prompt, (certificate / CERTIFICATE, certificate / KEY))
    assert attempt(with_tls, AWAY) == ("connection.unproven", False)
    if method in CLEAR:
        assert attempt(with_tls, AWAY, "&ssl_mode=REQUIRED") == ("connection.unproven", False)


def test_the_hostile_server_would_see_a_password_that_is_sent(certificate: Path) -> None:
    """Else the tests above could not fail: where REQUIRED accepts any server, and on loopback, it does."""
    with FakeServer(
        Login("caching_sha2_password", more=(b"\x04",), tls=(certificate / CERTIFICATE, certificate / KEY))
    ) as server:
        refusal(lambda: connect(url(server, AWAY, "&ssl_mode=REQUIRED"), where="x"))  # it answers no question
        assert server.knows(PASSWORD)
    with FakeServer(Login("caching_sha2_password", more=(b"\x04", b"\x03"))) as server:
        refusal(lambda: connect(url(server), where="x"))
        assert server.knows(PASSWORD)


@pytest.mark.parametrize("asks", ["", "caching_sha2_password", "mysql_clear_password"])
def test_a_certificate_that_is_not_accepted_ends_the_login_before_the_account_is_named(
    certificate: Path, tmp_path: Path, asks: str
) -> None:
    write_certificate(tmp_path)  # another authority
    login = Login(asks=asks, more=(b"\x04",), tls=(certificate / CERTIFICATE, certificate / KEY))
    for options in (f"&ssl_ca={tmp_path / CERTIFICATE}", "&ssl_mode=VERIFY_IDENTITY",
                    f"&ssl_mode=VERIFY_CA&ssl_ca={tmp_path / CERTIFICATE}",
                    f"&ssl_ca={certificate / CERTIFICATE}"):  # fmt: skip
        with FakeServer(login) as server:
            error = refusal(lambda: connect(url(server, AWAY, options), where="source shop"))  # noqa: B023
            assert error.code == "connection.unproven"
            assert len(server.received) in (0, 32), "no more than the wish for TLS"


@pytest.mark.parametrize(
    "login",
    [
        Login(asks="a_plugin_of_mine"),
        Login(asks="client_ed25519"),
        Login(asks="caching_sha2_password", more=(b"\x09",)),
        Login(more=(b"\x04",)),
        Login(asks="sha256_password", more=(b"no key",)),
        Login(asks="\x1b[31m" + "x" * 100),
    ],
)
def test_a_login_method_that_we_do_not_have_is_refused_by_name(login: Login) -> None:
    code, known = attempt(login, AWAY)
    assert code in ("connection.login_method", "connection.unproven", "connection.unreachable")
    assert not known


GREETINGS = {
    "nothing but zeros": packet(0, bytes(60)),
    "empty": packet(0, b""),
    "one byte": packet(0, b"\x0a"),
    "no end of the version": packet(0, b"\x0a" + b"8" * 200),
    "text": b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n" + b" " * 100,
    "an error": packet(0, b"\xff" + struct.pack("<H", 1040) + b"Too many\x1b[2J connections\nPassword?"),
    "an error without a number": packet(0, b"\xff"),
    "wrong number": packet(3, b"\x0a8.0\0" + bytes(60)),
    "a length that never comes": b"\xff\xff\xff\x00abc",
    "protocol 9": packet(0, b"\x095.0\0" + bytes(60)),
    "a plugin that is no text": packet(
        0, b"\x0a8.0\0" + bytes(13) + b"\xff\xff\xff\x02\x00\xff\xff\x15" + bytes(23) + b"\xff\xfe\x80"
    ),
}  # fmt: skip


@pytest.mark.parametrize("greeting", GREETINGS)
def test_a_greeting_that_makes_no_sense_is_an_error_and_no_crash(greeting: str) -> None:
    with FakeServer(Login(greeting=GREETINGS[greeting])) as server:
        error = refusal(lambda: connect(url(server), where="source shop"))
        assert error.code in ("connection.unreachable", "connection.login_method", "connection.denied")
        assert error.what.isprintable()


@pytest.mark.parametrize(
    "after", [b"", packet(2, b""), packet(2, b"\xff\x15"), packet(7, b"\0\0\0"), packet(2, b"\xfe"), packet(2, b"\x01"),
              packet(2, b"\x02abc"), b"\xff\xff\xff\x02", packet(2, b"\xfe" + b"\xff" * 30)],
)  # fmt: skip
def test_an_answer_to_the_login_that_makes_no_sense_is_an_error_and_no_crash(after: bytes) -> None:
    with FakeServer(Login(after=after)) as server:
        error = refusal(lambda: connect(url(server), where="source shop"))
        assert error.code in ("connection.unreachable", "connection.login_method")
        assert not server.knows(PASSWORD)


@pytest.mark.parametrize("login", [Login(silent=True), Login(drips=True)])
def test_a_server_that_says_nothing_or_a_byte_at_a_time_is_left(login: Login) -> None:
    with FakeServer(login) as server:
        assert refusal(lambda: connect(url(server), where="source shop")).code == "connection.unreachable"


@pytest.mark.parametrize("bulk", [False, True])
def test_no_file_is_sent_that_was_not_offered(tmp_path: Path, bulk: bool) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the content of a file")
    with FakeServer(Login(reads_file=secret)) as server:
        error = refusal(
            lambda: open_session(url(server), "shop", where="target") if bulk else connect(url(server), where="source")
        )
        assert error.code == "connection.answer"
        assert b"the content" not in server.received


OWN = "IDENTIFIED BY 'right' "
KEPT_OUT: dict[str, tuple[str, Sequence[str], str, str]] = {
    "expired": (OWN + "PASSWORD EXPIRE", (), "connection.denied", "has expired|change the account's password"),
    "locked": (OWN + "ACCOUNT LOCK", (), "connection.denied", "ACCOUNT UNLOCK"),
    "at its limit": (OWN + "WITH MAX_USER_CONNECTIONS 1", (), "connection.unreachable", "the account's limit"),
    "without a session": (OWN, ("SET GLOBAL init_connect = 'nonsense'",), "connection.statement", "init_connect"),
    "blocked": (OWN + "{blocked}", ("{limit}",), "connection.denied", "correct the password in the connection first"),
}
"""What is said of an account, what is set, the code and a part of the remedy."""
RESTORED = ("SET GLOBAL init_connect = ''",)


@pytest.mark.parametrize("case", KEPT_OUT)
def test_an_account_that_the_server_keeps_out_is_told_why_and_tried_again_only_if_that_passes(
    origin: Origin, case: str
) -> None:
    account, settings, code, remedy = KEPT_OUT[case]
    blocked = "" if origin.mariadb else "FAILED_LOGIN_ATTEMPTS 1 PASSWORD_LOCK_TIME 1"
    limit = "SET GLOBAL max_password_errors = 1" if origin.mariadb else "DO 0"
    user = f"u{origin.name[-8:]}"
    with ExitStack() as restored:
        for statement in (*RESTORED, "SET GLOBAL max_password_errors = DEFAULT" if origin.mariadb else "DO 0"):
            restored.callback(origin.execute_on_server, statement)
        origin.execute_on_server(
            f"CREATE USER {user}@'%' {account.format(blocked=blocked)}",
            *(setting.format(limit=limit) for setting in settings),
        )
        restored.callback(origin.execute_on_server, f"DROP USER {user}@'%'")
        right = origin.address(user, "right")
        if case == "at its limit":
            restored.enter_context(connect(right, where="source shop"))
        if case == "blocked":
            for _ in range(2):
                assert refusal(lambda: connect(replace(right, password="wrong"), where="source shop")).exit_code == 3
        error = refusal(lambda: query(connect(right, where="source shop"), "SELECT 1"))
        assert error.code == code, error
        assert re.search(remedy, error.remedy), error
        assert error.retriable is (case == "at its limit")


def test_a_password_that_is_replaced_while_a_table_is_read_is_a_refused_login(origin: Origin) -> None:
    user = f"u{origin.name[-8:]}"
    origin.execute_on_server(f"CREATE USER {user}@'%' {OWN}")
    with connect(origin.address(user, "right"), where="source shop") as session:
        origin.execute_on_server(f"ALTER USER {user}@'%' IDENTIFIED BY 'new'", f"KILL {session.thread_id()}")
        error = refusal(lambda: query(session, "SELECT 1"))
    origin.execute_on_server(f"DROP USER {user}@'%'")
    assert (error.code, error.exit_code) == ("connection.denied", 3), error


@pytest.mark.parametrize("any_server", ["mysql9"], indirect=True)
def test_a_schema_that_somebody_made_read_only_is_refused_until_he_ends_it(origin: Origin) -> None:
    origin.execute("CREATE TABLE t (id INT)")
    origin.execute_on_server(f"ALTER SCHEMA {origin.name} READ ONLY = 1")
    try:
        error = refusal(lambda: translating("here")(origin.execute)("INSERT INTO t VALUES (1)"))
        assert (error.code, error.exit_code) == ("connection.statement", 3)
        assert "READ ONLY = 0" in error.remedy
    finally:
        origin.execute_on_server(f"ALTER SCHEMA {origin.name} READ ONLY = 0")
