"""What the TLS options of a connection mean: one meaning for each combination, or a refusal that names it."""

from __future__ import annotations

import itertools
import ssl

import pytest

from cdc_core.errors import UsageError
from cdc_core.mysql.connections import parse_url
from cdc_core.mysql.tls import TEXTS, Tls, TlsMode, context
from tests.lab.refusals import raises

AWAY, HERE = "db.example", "127.0.0.1"


def mode(query: str, host: str = AWAY) -> str:
    return parse_url(f"mysql://u:pass@{host}/?{query}", where="env:X").tls.mode.value


@pytest.mark.parametrize(
    ("query", "meaning"),
    [
        ("", "PREFERRED"),
        ("ssl_mode=DISABLED", "DISABLED"),
        ("ssl_mode=preferred", "PREFERRED"),
        ("ssl_mode=Required", "REQUIRED"),
        ("ssl_mode=verify-ca&ssl_ca=/ca.pem", "VERIFY_CA"),
        ("ssl_mode=VERIFY_IDENTITY", "VERIFY_IDENTITY"),
        ("ssl_mode=REQUIRED&ssl_ca=/ca.pem", "VERIFY_CA"),
        ("ssl_mode=REQUIRED&ssl_cert=/c.pem&ssl_key=/k.pem", "REQUIRED"),
        ("ssl_ca=/ca.pem", "VERIFY_IDENTITY"),
        ("ssl_ca=/ca.pem&ssl_cert=/c.pem&ssl_key=/k.pem", "VERIFY_IDENTITY"),
        ("ssl_cert=/c.pem&ssl_key=/k.pem", "REQUIRED"),
    ],
)
def test_options_have_one_meaning(query: str, meaning: str) -> None:
    assert mode(query) == meaning


@pytest.mark.parametrize(
    ("hosts", "meaning"),
    [
        (("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "[::1]"), "DISABLED"),
        (("0.0.0.0", "[::]", "localhost.example", "127.0.0.1.example", "10.0.0.1"), "PREFERRED"),
    ],
)
def test_without_options_only_loopback_is_plain_text(hosts: tuple[str, ...], meaning: str) -> None:
    assert [mode("", host) for host in hosts] == [meaning] * len(hosts)


@pytest.mark.parametrize(
    "query",
    [
        "ssl_mode=DISABLED&ssl_ca=/ca.pem", "ssl_mode=PREFERRED&ssl_ca=/ca.pem", "ssl_mode=PREFERRED&ssl_cert=/c.pem",
        "ssl_mode=VERIFY_CA", "ssl_key=/k.pem", "ssl_key_password=x", "ssl_mode=ON", "ssl_mode=", "ssl_ca=",
        "ssl_ca=/a&ssl_ca=/b", "ssl_verify_cert=true", "ssl_capath=/x", "read_timeout=0", "read_timeout=-1",
        "read_timeout=nan", "read_timeout=inf", "connect_timeout=x",
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_or_contradicts_another_is_refused(query: str) -> None:
    with raises(UsageError, "connection.url") as caught:
        mode(query)
    assert "pass" not in str(caught.value).replace("ssl_key_password", "")


def test_every_combination_is_refused_or_means_what_it_says() -> None:
    """All of 6 modes x 4 texts: none ends otherwise, and a CA always verifies."""
    choices: list[list[str]] = [["", *(f"ssl_mode={member}" for member in TlsMode.__members__)]]
    choices += [["", f"{name}=/x"] for name in TEXTS]
    taken = 0
    for combination in itertools.product(*choices):
        query = "&".join(filter(None, combination))
        try:
            found = parse_url(f"mysql://u@{AWAY}/?{query}", where="env:X").tls
        except UsageError as error:
            assert error.code == "connection.url"  # noqa: PT017 - the other outcome is looked at below
            continue
        taken += 1
        if "ssl_ca=" in query:
            assert found.mode.verifies, query
        if any(word in query for word in ("REQUIRED", "VERIFY", "ssl_ca", "ssl_cert")):
            assert found.mode.insists, query
        if "VERIFY_IDENTITY" in query:
            assert found.mode is TlsMode.VERIFY_IDENTITY, query
        if not query:
            assert found == Tls(TlsMode.PREFERRED)
    assert taken > 30


def test_the_context_verifies_as_the_mode_says() -> None:
    assert context(Tls(TlsMode.DISABLED)) is None
    for mode_, verify, names in (
        (TlsMode.PREFERRED, ssl.CERT_NONE, False),
        (TlsMode.REQUIRED, ssl.CERT_NONE, False),
        (TlsMode.VERIFY_CA, ssl.CERT_REQUIRED, False),
        (TlsMode.VERIFY_IDENTITY, ssl.CERT_REQUIRED, True),
    ):
        made = context(Tls(mode_))
        assert (made.verify_mode, made.check_hostname) == (verify, names)
        assert made.minimum_version >= ssl.TLSVersion.TLSv1_2
