"""A connection is read from the environment; its password reaches PyMySQL and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cdc_core.errors import RetryLater, UsageError
from cdc_core.mysql.connections import Server, connect, parse_url, resolve, variable_of
from examples.sandbox.tls import CERTIFICATE, write_certificate
from tests.lab.refusals import raises, refusal
from tests.lab.shell import export

SECRET = "s3cr/t@:?#ü"
QUOTED = "s3cr%2Ft%40%3A%3F%23%C3%BC"


def test_a_url_names_host_port_user_and_password_with_special_characters_percent_encoded() -> None:
    server = parse_url(f"mysql://na%40me:{QUOTED}@db.example:3307/shop", where="env:X")
    assert (server.host, server.port, server.user, server.password) == ("db.example", 3307, "na@me", SECRET)
    assert parse_url("mariadb://u@h", where="env:X").port == 3306


def test_neither_text_nor_repr_of_a_server_shows_its_secrets() -> None:
    server = parse_url(f"mysql://u:{QUOTED}@h/?ssl_cert=/c.pem&ssl_key_password=keypass", where="env:X")
    assert "s3cr" not in repr(server) + str(server)
    assert "keypass" not in repr(server) + str(server)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:pass@h", "mysql://:pass@h", "mysql://u:pass@", "mysql://u:pass@h:port", "u:pass@h",
        "mysql://u:[pass@h", "mysql://u:pass#x@h", "mysql://u:x@y?pass@h/", "mysql://u:x@y?pass&z@h/",
        "mysql://u:x@y?pass=1@h/", "mysql://u:pass@h/?ssl_verify_cert=maybe", "mysql://u:pass@h/?timeout=3",
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with raises(UsageError, "connection.url") as caught:
        parse_url(url, where="env:X")
    assert "pass@" not in str(caught.value)
    assert "pass" not in caught.value.what.replace("password", "")


def test_an_airflow_connection_is_read_from_its_variable() -> None:
    assert variable_of("airflow:shop-source.1") == "LOCKSTEP_CONN_SHOP_SOURCE_1"
    export({"LOCKSTEP_CONN_SHOP": "mysql://u@localhost:1"})
    assert resolve("airflow:shop") == Server("localhost", 1, "u", "")


def test_an_unset_variable_is_named_with_what_to_export() -> None:
    with raises(UsageError, "config.unset", match="export SHOP_URL="):
        resolve("env:SHOP_URL")


def test_a_server_that_does_not_answer_is_worth_a_retry() -> None:
    with raises(RetryLater, "connection.unreachable") as caught:
        connect(Server("127.0.0.1", 1, "u", SECRET), where="source shop")
    assert SECRET not in str(caught.value)


def test_time_outs_of_the_url_are_seconds() -> None:
    server = parse_url("mysql://u@h/?connect_timeout=2&read_timeout=0.5", where="env:X")
    assert server.timeouts == {"connect_timeout": 2, "read_timeout": 0.5}


@pytest.mark.parametrize(
    "options",
    ["ssl_ca=/nowhere/ca.pem", "ssl_ca={dir}", "ssl_ca={dir}/text", "ssl_ca=%00", "ssl_cert={dir}/text",
     "ssl_cert={dir}/locked", "ssl_cert={dir}/locked&ssl_key_password=wrong"],
)  # fmt: skip
def test_a_tls_file_that_cannot_be_used_is_a_mistake_of_the_configuration(options: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"right")
    )
    write_certificate(tmp_path)
    (tmp_path / "locked").write_bytes(locked + (tmp_path / CERTIFICATE).read_bytes())
    server = parse_url(f"mysql://u@127.0.0.1:1/?{options.format(dir=tmp_path)}", where="env:X")
    error = refusal(lambda: connect(server, where="source shop"))
    assert error.code == "connection.url"
    assert "wrong" not in str(error)
