"""How a connection is protected: what the options of a connection's URL mean, decided before any socket is opened.

The words are those of MySQL's own client. It must keep true that each combination of options either has the one meaning
below or is refused, that a CA is always verified, and that only DISABLED and PREFERRED ever use plain text.

  ssl_mode         without TLS at the server   certificate   host name
  DISABLED         plain text                  -             -
  PREFERRED        plain text                  not verified  not verified
  REQUIRED         refused                     not verified  not verified
  VERIFY_CA        refused                     verified      not verified
  VERIFY_IDENTITY  refused                     verified      verified

Without `ssl_mode` the other options decide (`tls_of`); without any, PREFERRED, and DISABLED on loopback, where nothing
is in between. When a server may have the password itself: `_may_have_password` in cdc_core/mysql/client.py.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from cdc_core.errors import UsageError


class TlsMode(Enum):
    DISABLED = "DISABLED"
    PREFERRED = "PREFERRED"
    REQUIRED = "REQUIRED"
    VERIFY_CA = "VERIFY_CA"
    VERIFY_IDENTITY = "VERIFY_IDENTITY"

    @property
    def insists(self) -> bool:
        """Whether a server without TLS is refused."""
        return self not in (TlsMode.DISABLED, TlsMode.PREFERRED)

    @property
    def verifies(self) -> bool:
        """Whether the server must prove its identity by its certificate."""
        return self in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY)


TEXTS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password")
MODE = "ssl_mode"


@dataclass(frozen=True, slots=True)
class Tls:
    """ca: path of the CA certificates; "" for those of the system. cert, key: of the client."""

    mode: TlsMode
    ca: str = ""
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)


def is_loopback(host: str) -> bool:
    """Whether the name can only mean this machine: `localhost`, 127.0.0.0/8, ::1. No name is looked up."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_of(options: Mapping[str, str], *, host: str, where: str) -> Tls:
    """The meaning of MODE and TEXTS. Raises UsageError (connection.url)."""
    text = {name: options.get(name, "") for name in TEXTS}
    mode = _mode(options, host)
    named = [name for name in TEXTS if name in options]
    if named and not mode.insists:
        raise _contradiction(f"{named[0]} makes no sense with ssl_mode={mode.value}, which may talk without TLS", where)
    if text["ssl_ca"] and mode is TlsMode.REQUIRED:
        mode = TlsMode.VERIFY_CA  # a CA that is given verifies
    if mode is TlsMode.VERIFY_CA and not text["ssl_ca"]:
        raise _contradiction(
            "VERIFY_CA needs ssl_ca: a certificate of any public authority proves nothing without its host name",
            where,
        )
    if text["ssl_key"] and not text["ssl_cert"]:
        raise _contradiction("ssl_key needs ssl_cert", where)
    if text["ssl_key_password"] and not text["ssl_cert"]:
        raise _contradiction("ssl_key_password needs ssl_cert", where)
    return Tls(mode, text["ssl_ca"], text["ssl_cert"], text["ssl_key"], text["ssl_key_password"])


def _mode(options: Mapping[str, str], host: str) -> TlsMode:
    if MODE in options:
        return TlsMode(options[MODE])
    if "ssl_ca" in options:
        return TlsMode.VERIFY_IDENTITY
    if any(name in options for name in TEXTS):
        return TlsMode.REQUIRED
    return TlsMode.DISABLED if is_loopback(host) else TlsMode.PREFERRED


def _contradiction(why: str, where: str) -> UsageError:
    return UsageError(
        f"The connection's TLS options contradict each other: {why}.",
        where=where,
        code="connection.url",
        remedy="write ssl_mode=VERIFY_IDENTITY&ssl_ca=/path/ca.pem, or another of DISABLED, PREFERRED, REQUIRED, "
        "VERIFY_CA, VERIFY_IDENTITY, and leave out options that do not go with it (docs/security.md)",
    )


def context(tls: Tls) -> ssl.SSLContext | None:
    """None for DISABLED. Raises OSError (ssl.SSLError too) and ValueError for files that cannot be used."""
    if tls.mode is TlsMode.DISABLED:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # TLS 1.2 and later
    made.check_hostname = tls.mode is TlsMode.VERIFY_IDENTITY
    made.verify_mode = ssl.CERT_REQUIRED if tls.mode.verifies else ssl.CERT_NONE
    if tls.ca:
        made.load_verify_locations(tls.ca)
    elif tls.mode.verifies:
        made.load_default_certs()
    if tls.cert:
        # A function, even for no password: OpenSSL would ask the terminal for one, and wait.
        made.load_cert_chain(tls.cert, tls.key or None, lambda: tls.key_password)
    return made
