"""A meta database that means harm: it gets no password, and nobody waits for ever. To a MySQL Lockstep logs in as to a
source (test_hostile_login)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from cdc_core.errors import LockstepError, RetryLater
from cdc_core.meta import Meta
from examples.sandbox.tls import CERTIFICATE, write_certificate
from tests.lab.hostile_postgres import FakePostgres
from tests.lab.pipeline_file import NOWHERE, made_pipeline
from tests.lab.refusals import refusal
from tests.lab.shell import export
from tests.lab.tcp_proxy import TcpProxy

PASSWORD = "Pa55-w0rd-of-the-account"
AWAY, HERE = "0.0.0.0", "127.0.0.1"


def refused(url: str) -> LockstepError:
    export({"META": url})
    error = refusal(lambda: Meta.open("env:META", "shop", busy_timeout_s=1, answer_timeout_s=2))
    assert PASSWORD not in str(error)
    assert str(error).isprintable()
    return error


@pytest.mark.parametrize("options", ["", "?sslmode=prefer", "?sslmode=allow", "?sslmode=disable"])
def test_a_postgresql_that_asks_for_the_password_itself_does_not_get_it(options: str) -> None:
    with FakePostgres() as server:
        error = refused(f"postgresql://meta:{PASSWORD}@{AWAY}:{server.port}/m{options}")
        assert error.code == "connection.unproven"
        assert PASSWORD.encode() not in server.received


def test_a_postgresql_may_be_allowed_to_ask_for_the_password_itself() -> None:
    """Where nothing can be in between, or the URL says so; and the hostile server would see a password that is sent."""
    for host, options in ((HERE, ""), (AWAY, "?require_auth=password")):
        with FakePostgres() as server:
            error = refused(f"postgresql://meta:{PASSWORD}@{host}:{server.port}/m{options}")
            assert error.code == "connection.denied"
            assert PASSWORD.encode() in server.received


@pytest.mark.parametrize("by", ["hostaddr", "PGHOSTADDR", "service", "PGSERVICE"])
def test_a_postgresql_that_is_named_elsewhere_is_not_taken_for_a_local_one(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakePostgres() as server:
        services = tmp_path / "services"
        services.write_text(f"[far]\nhost={AWAY}\nport={server.port}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(services))
        value = AWAY if "addr" in by.lower() else "far"
        if by.isupper():
            monkeypatch.setenv(by, value)
        place = f"{HERE}:{server.port}" if value == AWAY else ""
        error = refused(f"postgresql://meta:{PASSWORD}@{place}/m" + ("" if by.isupper() else f"?{by}={value}"))
        assert error.code == "connection.unproven"
        assert PASSWORD.encode() not in server.received


@pytest.mark.parametrize("options", ["sslmode=require", "sslmode=verify-full&sslrootcert={ca}"])
def test_a_postgresql_that_takes_tls_away_learns_nothing(tmp_path: Path, options: str) -> None:
    write_certificate(tmp_path)
    with FakePostgres() as server:
        url = f"postgresql://meta:{PASSWORD}@{AWAY}:{server.port}/m?{options.format(ca=tmp_path / CERTIFICATE)}"
        assert refused(url).code == "connection.unproven"
        assert not server.received


def test_a_postgresql_that_says_nothing_after_the_login_is_left() -> None:
    with FakePostgres(silent=True) as server:
        error = refused(f"postgresql://meta:{PASSWORD}@{HERE}:{server.port}/m")
        assert error.code == "connection.unreachable"


def test_a_postgresql_that_falls_silent_in_the_middle_is_left_and_asked_again_later(postgres: Any) -> None:
    engine = create_engine(postgres.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE silent"))
    engine.dispose()
    with TcpProxy(postgres.port) as proxy:
        through = str(postgres.url("silent")).replace(f":{postgres.port}/", f":{proxy.port}/")
        export({"META": through})
        with Meta.open("env:META", "line", upgrade=True, busy_timeout_s=1, answer_timeout_s=2) as meta:
            before = meta.now_us()
            proxy.stall()
            error = refusal(meta.now_us)
            assert isinstance(error, RetryLater)
            assert error.code == "connection.unreachable"
            proxy.flow()
            assert meta.now_us() > before


SECRETS = ("password=", "passwd=", "sslpassword=", "ssl_key_password=", "passphrase=")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_no_option_of_a_url_is_repeated(kind: str, name: str) -> None:
    """A password may be written as an option, too."""
    refused(f"{kind}://u@127.0.0.1:1/db?{name}{PASSWORD}")
    error = refusal(lambda: made_pipeline(NOWHERE, "shop", meta={"url": f"{kind}://u@127.0.0.1/db?{name}{PASSWORD}"}))
    assert error.code == "config.invalid"
    assert PASSWORD not in str(error)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://u@127.0.0.1:1/db?sslmode=verify-full", "connection.url"),
        ("mysql://u@127.0.0.1:1/db?ssl=true", "connection.url"),
        ("mysql://u@127.0.0.1:1/db?local_infile=1", "connection.url"),
        ("mysql://u@127.0.0.1:1/db?ssl_mode=REQUIRED&ssl_mode=DISABLED", "connection.url"),
        ("postgresql://u@127.0.0.1:1/db?ssl_mode=REQUIRED", "config.invalid"),
        ("postgresql://u@127.0.0.1:1/db?sslmode=VERIFY_FULL", "config.invalid"),
    ],
)
def test_an_option_that_would_be_left_out_is_refused(url: str, code: str) -> None:
    assert refused(url).code == code
