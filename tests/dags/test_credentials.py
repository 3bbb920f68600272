"""Airflow connections become the variables that cdc_core reads, and their passwords never reach a log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from cdc_core import config
from cdc_core.errors import UsageError
from cdc_core.lake.catalogs import resolved
from cdc_core.mysql import connections
from cdc_core.mysql.tls import Tls, TlsMode
from lockstep_airflow.credentials import exported

SECRET = "p@ss/w%rd:1"


@pytest.fixture
def pipeline(write_pipeline: Callable[..., Path]) -> Any:
    return config.load(write_pipeline("shop"))


@pytest.fixture
def connection_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_DB", _json(extra='{"ssl": {"ca": "/ca.pem"}, "charset": "utf8"}'))
    monkeypatch.setenv("AIRFLOW_CONN_TARGET_DB", _json(extra='{"ssl_mode": "DISABLED"}'))


def _json(*, conn_type: str = "mysql", extra: str = "{}") -> str:
    return (
        f'{{"conn_type": "{conn_type}", "host": "db.example", "port": 3307, "login": "cdc@x", "password": "{SECRET}", '
        f'"extra": {extra}}}'
    )


@pytest.mark.usefixtures("connection_ids")
def test_a_connection_arrives_whole_at_the_core_and_this_process_keeps_its_environment(pipeline: Any) -> None:
    before = dict(os.environ)
    with exported(pipeline):
        server = connections.resolve("airflow:source_db")
        assert connections.resolve("airflow:target_db").tls == Tls(TlsMode.DISABLED)
    assert (server.host, server.port, server.user, server.password) == ("db.example", 3307, "cdc@x", SECRET)
    assert server.tls == Tls(TlsMode.VERIFY_IDENTITY, "/ca.pem")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ('{"ssl_mode": "REQUIRED"}', Tls(TlsMode.REQUIRED)),
        ('{"ssl_mode": "REQUIRED", "ssl": {"ca": "/ca.pem"}}', Tls(TlsMode.VERIFY_CA, "/ca.pem")),
        ('{"ssl_mode": "VERIFY_CA", "ssl_ca": "/ca.pem"}', Tls(TlsMode.VERIFY_CA, "/ca.pem")),
        (
            '{"ssl_mode": "VERIFY_IDENTITY", "ssl": "{\\"ca\\": \\"/ca.pem\\"}"}',
            Tls(TlsMode.VERIFY_IDENTITY, "/ca.pem"),
        ),
        (
            '{"ssl_ca": "/ca.pem", "ssl_cert": "/c.pem", "ssl_key": "/k.pem"}',
            Tls(TlsMode.VERIFY_IDENTITY, "/ca.pem", "/c.pem", "/k.pem"),
        ),
        ('{"charset": "utf8"}', Tls(TlsMode.PREFERRED)),
    ],
)
def test_extras_of_tls_mean_what_the_urls_options_do(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, extra: str, expected: Tls
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_DB", _json(extra=extra))
    monkeypatch.setenv("AIRFLOW_CONN_TARGET_DB", _json(extra='{"read_timeout": 7}'))
    with exported(pipeline):
        assert connections.resolve("airflow:source_db").tls == expected
        assert connections.resolve("airflow:target_db").timeouts == {"read_timeout": 7}


@pytest.mark.parametrize(
    "extra",
    ['{"ssl_mode": "MAYBE"}', '{"ssl_mode": "VERIFY_CA"}', '{"ssl": {"capath": "/x"}}', '{"ssl": true}',
     '{"ssl_mode": null}', '{"sslmode": "VERIFY_IDENTITY"}', '{"ssl-mode": "REQUIRED"}', '{"SSL_MODE": "REQUIRED"}',
     '{"sslMode": "REQUIRED"}', '{"Ssl": {"ca": "/ca.pem"}}', '{"tls": true}', '{"use_ssl": true}', '{"requireSSL": 1}',
     '{"unix_socket": "/x"}', '{"timeout": 3}', '{"ssl": "ca"}',
     '{"ssl_ca": "/a", "ssl": {"ca": "/b"}}', '{"ssl_capath": "/x"}'],
)  # fmt: skip
def test_extras_of_tls_that_would_be_left_out_are_refused(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_DB", _json(extra=extra))
    monkeypatch.setenv("AIRFLOW_CONN_TARGET_DB", _json())
    with pytest.raises(UsageError) as raised, exported(pipeline):
        connections.resolve("airflow:source_db")
    assert raised.value.code in ("airflow.connection", "connection.url", "connection.url")


def test_a_connection_that_airflow_does_not_have_is_named_with_the_command_that_adds_it(pipeline: Any) -> None:
    with pytest.raises(UsageError) as raised, exported(pipeline):
        pass
    assert raised.value.code == "airflow.connection"
    assert "airflow connections add source_db" in str(raised.value)


def test_a_connection_of_another_type_is_refused_without_its_password(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_DB", _json(conn_type="postgres"))
    with pytest.raises(UsageError, match="postgres") as raised, exported(pipeline):
        pass
    assert SECRET not in str(raised.value)


@pytest.mark.usefixtures("connection_ids")
def test_passwords_are_masked_in_logs_also_as_they_stand_in_urls(pipeline: Any) -> None:
    from airflow.sdk.log import redact

    with exported(pipeline):
        url = os.environ["LOCKSTEP_CONN_SOURCE_DB"]
    for text in (f"login with {SECRET} failed", f"cannot open {url}"):
        shown = redact(text)
        assert SECRET not in shown
        assert "p%40ss" not in shown
        assert "***" in shown


def test_catalogs_of_lakes_take_the_url_of_a_postgres_connection_and_the_password_of_any_other(
    write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.log import redact

    properties = {"type": "sql", "uri": "airflow:lake_db", "s3.secret-access-key": "airflow:lake_key"}
    lake = {"name": "lake", "kind": "iceberg", "catalog": properties, "namespace": "shop", "tables": {"*": {}}}
    made = config.load(
        write_pipeline("shop", targets=[lake], sources=[{"name": "shop", "connection": "env:SHOP", "server_id": 1}])
    )
    (target,) = made.targets
    assert isinstance(target, config.IcebergTarget)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_DB", _json(conn_type="postgres", extra='{"sslmode": "require"}'))
    with pytest.raises(UsageError, match="airflow connections add lake_key --conn-type generic"), exported(made):
        pass
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_KEY", '{"conn_type": "generic", "password": ""}')
    with pytest.raises(UsageError, match="has no password"), exported(made):
        pass
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_KEY", '{"conn_type": "generic", "password": "the-key-of-the-bucket"}')
    with exported(made):
        found = resolved(target)
    url = make_url(found["uri"])
    assert (url.username, url.password, url.host) == ("cdc@x", SECRET, "db.example")
    assert (url.drivername, url.port, url.query) == ("postgresql+psycopg", 3307, {"sslmode": "require"})
    assert found["s3.secret-access-key"] == "the-key-of-the-bucket"
    assert "the-key-of-the-bucket" not in redact("no access with the-key-of-the-bucket")
    assert SECRET not in redact(f"cannot open {found['uri']}")
