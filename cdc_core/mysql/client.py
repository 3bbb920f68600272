"""PyMySQL's connection, hardened against the server. The only module that changes how PyMySQL works.

It must not trust the server: another may answer in its place, or sit in between. It must keep true that
- TLS that was asked for is never given up, and is verified as `tls.Tls` says before the account's name is sent;
- the password itself goes to a server only as `_may_have_password` says; otherwise a scramble of it, or nothing;
- a file is sent only while our own LOAD DATA LOCAL runs, and only the file that it names (`sending`);
- silence, an endless answer, a malformed answer and the end of the connection are handled alike: the connection is
  closed, and OperationalError 2013 (lost connection) is raised, after a bounded time.

What of PyMySQL is private and used here, all checked with 1.1.3:
  overridden  connect, _get_server_information, _request_authentication, _execute_command, _read_packet,
              _read_ok_packet, _read_query_result, set_character_set; of MySQLResult: _read_load_local_packet,
              _read_rowdata_packet
  called      _force_close, write_packet, ctx, _sock, _rfile (replaced), _connect_attrs, _auth_plugin_name,
              _read_timeout, _local_infile, server_capabilities, salt, client_flag; of _auth: what scrambles
A test runs every login method and every step of a session against it on real servers, so that another version of
PyMySQL cannot change any of it unnoticed.

The login phase: dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase.html
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
from pymysql import _auth
from pymysql.charset import charset_by_name
from pymysql.connections import MySQLResult
from pymysql.constants import CLIENT, CR
from pymysql.err import MySQLError, OperationalError
from pymysql.protocol import LoadLocalPacketWrapper, MysqlPacket

from cdc_core.errors import OtherServer, Refused, UsageError, defect
from cdc_core.mysql.tls import Tls, context, is_loopback

LOGIN_FACTOR = 3
"""The whole login, with TLS, may take at most this many times the connect time-out."""
MAX_RESULT_BYTES = 1 << 30
"""Limit of one statement's answer: the most that a server may send in one packet, far more than our statements need."""
_PROTOCOL = 10
_NEEDED = CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH
_BUFFER_BYTES = 1 << 16
_MAX_PACKET = (1 << 24) - 1
_MAX_LOGIN_PACKETS = 10
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""A vanished peer is noticed after two minutes, even where an answer may take an hour."""

_STUMBLES = (
    AssertionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What PyMySQL's parser and its converters raise for bytes that they do not expect; UnicodeError is a ValueError."""

_OK, _MORE, _SWITCH = 0x00, 0x01, 0xFE
_FAST_AUTH_DONE, _FULL_AUTH = b"\x03", b"\x04"
_ASK_FOR_KEY = b"\x02"
_ASK_FOR_KEY_SHA256 = b"\x01"


class SafeConnection(pymysql.Connection):
    """A connection that trusts its server no more than necessary.

    tls:                 see `tls.Tls`.
    where:               of errors.
    statement_timeout_s: how long one statement may take with all of its answer; None: as long as bytes keep coming.
    set_up:              called after each login, also when it connects again: what the server's init_connect has set
                         is past by then.
    identity:            the only server that it may lead to, whenever it connects (server_identity); "" for any.
    options:             PyMySQL's; none of ssl_*.
    Raises, besides PyMySQL's errors: UsageError (connection.url) for TLS files that cannot be used; Refused
    (connection.unproven, connection.login_method, connection.answer), RetryLater (source.other_server), also later and
    whenever it connects again.
    """

    # Private to PyMySQL, and so not in its stubs.
    _sock: Any
    _rfile: Any
    _auth_plugin_name: str
    _connect_attrs: dict[str, str]
    _closed: bool
    _force_close: Callable[[], None]
    _read_timeout: float | None
    ctx: ssl.SSLContext
    password: bytes
    protocol_version: int
    salt: bytes
    server_capabilities: int

    def __init__(
        self,
        *,
        tls: Tls,
        where: str,
        statement_timeout_s: float | None = None,
        identity: str = "",
        set_up: Callable[[SafeConnection], None] = lambda connection: None,
        **options: Any,
    ) -> None:
        self._tls = tls
        self._set_up = set_up
        self._where = where
        self.identity = identity
        self._statement_timeout_s = statement_timeout_s
        self._incoming = _Incoming()
        self._offered: str | None = None
        self._answering = False
        self._encrypted = False
        try:
            made = context(tls)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"TLS cannot be set up: {getattr(error, 'strerror', None) or error}.",
                where=where,
                code="connection.url",
                remedy="check the files that ssl_ca, ssl_cert and ssl_key of the connection's URL name: they must be "
                "readable PEM files, and ssl_key_password must be the key's",
            ) from None
        password = options.pop("password", "")
        # PyMySQL would take Latin-1; both servers hash what the client sends, which is UTF-8 everywhere else.
        options["password"] = password.encode() if isinstance(password, str) else password
        super().__init__(ssl=made, **options)

    def close(self) -> None:
        """Does nothing if it is closed already: an error of closing it twice would hide the one that has closed it."""
        if not self._closed:
            super().close()

    def __del__(self) -> None:
        self._force_close()

    # The login

    def connect(self, sock: Any = None) -> None:
        self._encrypted = False
        self._offered = None
        self._answering = False
        assert self.connect_timeout is not None
        self._incoming.deadline_s = time.monotonic() + LOGIN_FACTOR * self.connect_timeout
        try:
            super().connect(sock or self._socket())
            self._set_up(self)
        except BaseException:
            self._force_close()
            raise
        finally:
            self._incoming.deadline_s = None
        if self.identity and (identity := self.server_identity()) != self.identity:
            self._force_close()
            raise OtherServer(
                f"The address led to the server {self.identity} before, and now the server {identity} answers.",
                where=self._where,
                remedy="run the command again: after a failover it continues at the new server. What it has read but "
                "not recorded does not count",
            )

    def server_identity(self) -> str:
        """What no other server has: a MySQL's UUID, a MariaDB's server_id."""
        with self._understood(), self.cursor() as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid')")
            return identity_in({str(name).lower(): str(value) for name, value in cursor.fetchall()})

    def _socket(self) -> socket.socket | None:
        if self.unix_socket:
            return None
        try:
            made = socket.create_connection((self.host, self.port), self.connect_timeout)
        except (OSError, UnicodeError) as error:
            raise OperationalError(
                CR.CR_CONN_HOST_ERROR, f"Can't connect to MySQL server on {self.host!r} ({error})"
            ) from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made

    def _get_server_information(self) -> None:
        self._listen()
        with self._understood():
            super()._get_server_information()  # type: ignore[misc]
            if self.protocol_version != _PROTOCOL or self.server_capabilities & _NEEDED != _NEEDED:
                raise ValueError("a greeting of MySQL 4.1 or later")
        if self._tls.mode.insists and not self.server_capabilities & CLIENT.SSL:
            raise Refused(
                f"The server does not offer TLS, which ssl_mode={self._tls.mode.value} requires.",
                where=self._where,
                code="connection.unproven",
                remedy="enable TLS on the server (ssl_cert, ssl_key); if it has TLS, something in between removes it: "
                "find out what. Nothing was sent",
            )

    def _request_authentication(self) -> None:
        with self._understood():
            self._log_in()

    def _log_in(self) -> None:
        """HandshakeResponse41, then what the server asks for until it says OK."""
        flags = self.client_flag & ~CLIENT.SSL
        encrypt = bool(self.ssl and self.server_capabilities & CLIENT.SSL)
        if encrypt:
            flags |= CLIENT.SSL
        charset: Any = charset_by_name(self.charset)
        head = struct.pack("<IIB23s", flags, _MAX_PACKET, charset.id, b"")
        if encrypt:
            self.write_packet(head)
            self._encrypt()
        plugin = self._auth_plugin_name or "mysql_native_password"
        if self._scramble(plugin, self.salt) is None:
            plugin = "caching_sha2_password"  # a server whose account has another method then asks for that
        answer = self._scramble(plugin, self.salt) or b""
        parts = [head, _encoded(self.user), b"\0"]
        if self.server_capabilities & CLIENT.PLUGIN_AUTH_LENENC_CLIENT_DATA:
            parts += [_lenenc(answer)]
        else:
            parts += [bytes([len(answer)]), answer]
        if self.db and self.server_capabilities & CLIENT.CONNECT_WITH_DB:
            parts += [_encoded(self.db), b"\0"]
        parts += [plugin.encode(), b"\0"]
        if self.server_capabilities & CLIENT.CONNECT_ATTRS:
            pairs = b"".join(_lenenc(text.encode()) for pair in self._connect_attrs.items() for text in pair)
            parts += [_lenenc(pairs)]
        self.write_packet(b"".join(parts))
        for _ in range(_MAX_LOGIN_PACKETS):
            data = self._read_packet().get_all_data()
            if data[0] == _OK:
                return
            if data[0] == _SWITCH:
                name, _, salt = data[1:].partition(b"\0")
                plugin = name.decode("ascii")
                self.salt = salt.removesuffix(b"\0")
                self.write_packet(self._switched(plugin, self.salt))
            elif data[0] == _MORE:
                reply = self._more(plugin, data[1:])
                if reply is not None:
                    self.write_packet(reply)
            else:
                raise self._no_method(f"packet {data[0]:#04x}")
        raise ValueError("the login does not end")

    def _encrypt(self) -> None:
        self._sock.settimeout(self._incoming.left_s())
        try:
            self._sock = self.ctx.wrap_socket(self._sock, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raise self._tls_refused(f"The server's certificate is not accepted: {error.verify_message}") from None
        except ssl.CertificateError as error:
            raise self._tls_refused(f"The server's certificate is not accepted: {error}") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            raise self._tls_refused(f"The TLS handshake failed: {error.reason or error}") from None
        self._listen()
        self._encrypted = True

    def _tls_refused(self, what: str) -> Refused:
        return Refused(
            f"{what.rstrip('.')}.",
            where=self._where,
            code="connection.unproven",
            remedy="check that ssl_ca is the authority that signed the server's certificate, that the certificate "
            "names the host as the connection does, and that it has not expired; if all this is right, another "
            "machine answers for the server. The password was not sent",
        )

    @property
    def _may_have_password(self) -> bool:
        """Whether the server may be given the password itself, for MySQL's own login methods.

        It has proven its identity; or it is on loopback, where nothing can be in between; or the connection says
        REQUIRED, which accepts any server as long as the connection is encrypted.
        """
        return (self._encrypted and self._tls.mode.insists) or bool(self.unix_socket) or is_loopback(self.host)

    def _scramble(self, plugin: str, salt: bytes) -> bytes | None:
        """The first answer of a method that never sends the password itself; None for the others."""
        if plugin == "mysql_native_password":
            return bytes(_auth.scramble_native_password(self.password, salt))
        if plugin == "caching_sha2_password":
            return bytes(_auth.scramble_caching_sha2(self.password, salt))
        return None

    def _switched(self, plugin: str, salt: bytes) -> bytes:
        """The answer to AuthSwitchRequest."""
        scramble = self._scramble(plugin, salt)
        if scramble is not None:
            return scramble
        if plugin == "sha256_password":
            return self._password_or_key_request(_ASK_FOR_KEY_SHA256) if self.password else b"\0"
        if plugin == "client_ed25519":
            try:
                return bytes(_auth.ed25519_password(self.password, salt))
            except RuntimeError:
                raise self._no_method(f"{plugin} (it needs the Python package pynacl)") from None
        if plugin in ("mysql_clear_password", "dialog", "mysql_old_password"):
            if not (self._encrypted and self._tls.mode.verifies):
                raise self._withheld(plugin)
            if plugin == "mysql_clear_password":
                return bytes(self.password) + b"\0"
        raise self._no_method(plugin)

    def _more(self, plugin: str, data: bytes) -> bytes | None:
        """The answer to AuthMoreData; None where the next packet follows by itself."""
        if plugin == "caching_sha2_password":
            if data == _FAST_AUTH_DONE:
                return None
            if data == _FULL_AUTH:
                return self._password_or_key_request(_ASK_FOR_KEY)
        if plugin not in ("caching_sha2_password", "sha256_password") or not data.startswith(b"-----BEGIN PUBLIC KEY"):
            raise self._no_method(plugin)
        if not self._may_have_password:
            raise self._withheld(plugin)
        return bytes(_auth.sha2_rsa_encrypt(self.password, self.salt, data))

    def _password_or_key_request(self, request: bytes) -> bytes:
        """The password, through TLS; else a request for the key that encrypts it, which any server could answer."""
        if not self._may_have_password:
            raise self._withheld("sha256_password" if request == _ASK_FOR_KEY_SHA256 else "caching_sha2_password")
        return bytes(self.password) + b"\0" if self._encrypted else request

    def _withheld(self, plugin: str) -> Refused:
        return Refused(
            f"The server asks for the password itself ({plugin}), but has not proven its identity.",
            where=self._where,
            code="connection.unproven",
            remedy="let TLS prove it: ssl_mode=VERIFY_IDENTITY&ssl_ca=/path/ca.pem. MySQL asks for the password at an "
            "account's first login after a restart (caching_sha2_password). With ssl_mode=REQUIRED any server gets "
            "it. The password was not sent",
        )

    def _no_method(self, plugin: str) -> Refused:
        return Refused(
            f"The server asks for a login method that Lockstep does not support: {plugin[:80]}.",
            where=self._where,
            code="connection.login_method",
            remedy="give the account caching_sha2_password, mysql_native_password or ed25519",
        )

    def advice(self) -> tuple[str, str] | None:
        """What is not safe about this connection, and what to do; None where it is safe, or on loopback."""
        if self._tls.mode.verifies or self.unix_socket or is_loopback(self.host):
            return None
        remedy = "write ssl_mode=VERIFY_IDENTITY&ssl_ca=/path/ca.pem into the connection"
        later = "; MySQL's caching_sha2_password will be refused at the first login after a restart of the server"
        if not self._encrypted:
            return f"in plain text: anyone in between can read and change everything{later}", remedy
        what = "encrypted, but the server has not proven its identity: anyone in between can read and change everything"
        return what + ("" if self._tls.mode.insists else later), remedy

    # Statements

    @contextmanager
    def sending(self, path: Path) -> Iterator[None]:
        """Wraps the one statement that may read a local file: `path`, once."""
        self._offered = str(path)
        try:
            yield
        finally:
            self._offered = None

    def hand_over(self, name: str) -> None:
        """Checks the server's LOCAL INFILE request. Raises Refused (connection.answer) unless we offered it."""
        offered, self._offered = self._offered, None
        if name != offered:
            self._force_close()
            raise Refused(
                f"The server asks for the file {name[:200]!r} of this machine, which Lockstep has not offered.",
                where=self._where,
                code="connection.answer",
                remedy="find out what answers at this address: a server never does this by mistake. Nothing was sent",
            )

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Like PyMySQL's, which accepts any answer as OK."""
        self.query(f"SET NAMES {charset}" + (f" COLLATE {collation}" if collation else ""))
        self.charset, self.collation = charset, collation

    # An answer that the caller reads itself

    def begin_answer(self, command: int, payload: bytes) -> None:
        """Sends a command whose answer the caller reads by `receive_into` up to its last byte.

        Until `end_answer` the connection takes no other command.
        """
        self._execute_command(command, payload)
        self._answering = True

    def receive_into(self, buffer: memoryview) -> int:
        """Some bytes of the answer, at least one. Limits on time apply to it, a limit on the answer's size does not."""
        try:
            size = self._incoming.receive_into(buffer)
        except OSError as error:
            raise self._lost(str(error)) from None
        if not size:
            raise self._lost("the server closed it")
        return size

    def extend_answer(self, seconds: float) -> None:
        """For time that the caller did not wait for the server: it does not count as the statement's."""
        if self._incoming.deadline_s is not None:
            self._incoming.deadline_s += seconds

    def end_answer(self, server_status: int | None = None) -> None:
        """The answer was read to its end. server_status: as its last packet says, if it does."""
        self._answering = False
        if server_status is not None:
            self.server_status = server_status

    def abandon_answer(self) -> None:
        """Closes the connection: the rest of the answer would come before the answer to the next command."""
        self._answering = False
        self._force_close()

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self._answering:
            # The next bytes are of that answer: they would be taken for the answer to this command.
            self.abandon_answer()
            raise defect(
                "A statement was sent while the answer to another was being read; the connection is closed.",
                where=self._where,
            )
        self._incoming.received = 0
        if self._statement_timeout_s is not None:
            self._incoming.deadline_s = time.monotonic() + self._statement_timeout_s
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        with self._understood():
            self._result = None
            result = _Result(self)
            if unbuffered:
                result.init_unbuffered_query()
            else:
                result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
            return result.affected_rows

    def _read_ok_packet(self) -> Any:
        with self._understood():
            return super()._read_ok_packet()  # type: ignore[misc]

    def _read_packet(self, packet_type: Callable[..., Any] = MysqlPacket) -> Any:
        try:  # not `with self._understood()`, which would dominate the time per row
            return super()._read_packet(packet_type)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._explain(error)
            raise

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """If PyMySQL fails on an answer, it violates the protocol: nothing after it can be parsed."""
        try:
            yield
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Raises OperationalError in place of what PyMySQL raises for bytes that it does not expect."""
        if isinstance(error, MySQLError):
            if not (error.args and isinstance(error.args[0], int)):
                raise self._lost(str(error)) from error
        elif isinstance(error, _STUMBLES) or type(error) is Exception:
            raise self._lost(f"it sent bytes that violate the protocol: {type(error).__name__}") from error

    def _lost(self, why: str) -> OperationalError:
        self.abandon_answer()
        return OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server ({why})")

    def _listen(self) -> None:
        """From now on bytes come by `_Incoming`, in place of the file that PyMySQL has made of the socket."""
        deadline_s = self._incoming.deadline_s
        if self._rfile is not None:
            self._rfile.close()
        self._incoming = _Incoming(self._sock, self._read_timeout, deadline_s)
        self._rfile = io.BufferedReader(self._incoming, _BUFFER_BYTES)


def identity_in(variables: Mapping[str, str]) -> str:
    """SafeConnection.server_identity, of a server's variables."""
    return variables.get("server_uuid") or f"server_id={variables['server_id']}"


class _Incoming(io.RawIOBase):
    """The bytes of a socket, within limits on time and size. Raises OSError, as a socket does.

    It is asked once for each buffer, not for each packet: rows come by the million.
    """

    def __init__(
        self, sock: socket.socket | None = None, silence_s: float | None = None, deadline_s: float | None = None
    ):
        self._socket = sock
        self._silence_s = silence_s
        self.deadline_s = deadline_s
        self.received = 0

    def readable(self) -> bool:
        return True

    def left_s(self) -> float | None:
        """How long the next receive may wait."""
        if self.deadline_s is None:
            return self._silence_s
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no complete answer in time")
        return left_s if self._silence_s is None else min(left_s, self._silence_s)

    def receive_into(self, buffer: Any) -> int:
        assert self._socket is not None
        self._socket.settimeout(self.left_s())
        size: int = self._socket.recv_into(buffer)
        return size

    def readinto(self, buffer: Any) -> int:
        size = self.receive_into(buffer)
        self.received += size
        if self.received > MAX_RESULT_BYTES:
            raise OSError(f"an answer of more than {MAX_RESULT_BYTES} bytes")
        return size


class _Result(MySQLResult):
    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        name = LoadLocalPacketWrapper(first_packet).filename
        connection.hand_over(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name))
        super()._read_load_local_packet(first_packet)  # type: ignore[misc]

    def _read_rowdata_packet(self) -> None:
        super()._read_rowdata_packet()  # type: ignore[misc]
        # PyMySQL accepts a row that ends too early as a shorter one.
        if set(map(len, self.rows)) - {self.field_count}:
            raise ValueError("a row with fewer columns than the result has")


def _encoded(name: str | bytes | None) -> bytes:
    return name.encode() if isinstance(name, str) else name or b""


def _lenenc(data: bytes) -> bytes:
    size = len(data)
    if size < 0xFB:
        return bytes([size]) + data
    return b"\xfc" + struct.pack("<H", size) + data
