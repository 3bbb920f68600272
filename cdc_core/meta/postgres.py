"""psycopg's connection, hardened against the server, as cdc_core/mysql/client.py hardens PyMySQL's.

It must keep true that
- the password itself goes only to a server that has proven its identity or is on loopback, or where the URL allows it
  by `require_auth`: libpq alone would send it to any server that asks;
- a server that does not answer a statement in time is given up: libpq waits for ever.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from cdc_core.errors import LockstepError, Refused, UsageError
from cdc_core.mysql.connections import is_loopback

_REQUIRE_AUTH_SINCE = 160000
_VERIFYING = ("verify-ca", "verify-full")
_WRONG_OPTION = re.compile(r"invalid (connection option|URI query parameter|\w+ value|\w+ setting)|weak sslmode")
_REMEDY = "write sslmode=verify-full&sslrootcert=/path/ca.pem into the URL of the meta database"


def login_options(host: str | None, query: Mapping[str, Any]) -> dict[str, str]:
    """The options of libpq that must be added to those of a URL."""
    from psycopg import pq

    host = str(query.get("host") or host or os.environ.get("PGHOST") or "")
    elsewhere = {"hostaddr", "service"} & query.keys() or {"PGHOSTADDR", "PGSERVICE"} & os.environ.keys()
    local = not elsewhere and (not host or host.startswith(("/", "@")) or is_loopback(host))
    said = "require_auth" in query or "PGREQUIREAUTH" in os.environ
    mode = query.get("sslmode") or os.environ.get("PGSSLMODE")
    if said or local or mode in _VERIFYING or pq.version() < _REQUIRE_AUTH_SINCE:
        return {}
    return {"require_auth": "!password"}


def connect(answer_s: float, arguments: Any, options: Mapping[str, Any]) -> Any:
    """An open connection that gives up a statement after `answer_s`. Raises psycopg's errors."""
    import psycopg

    class _Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Any, *rest: Any, **settings: Any) -> Any:
            return super().wait(_bounded(gen, answer_s, self), *rest, **settings)

    return _Bounded.connect(*arguments, **options)


def _bounded(gen: Any, answer_s: float, connection: Any) -> Any:
    """psycopg's generator, which yields whenever it would wait, and gets control back several times a second."""
    import psycopg

    deadline_s = time.monotonic() + answer_s
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline_s:
                connection.pgconn.finish()  # what arrives later would answer the next statement
                raise psycopg.OperationalError(f"no answer in {answer_s:g} s")
            state = gen.send(ready)
    except StopIteration as done:
        return done.value


def refusal(why: str, where: str) -> LockstepError | None:
    """The error for a login that libpq refused by itself, of which it tells nothing but the text."""
    if "authentication method requirement" in why:
        return Refused(
            "The PostgreSQL server asks for the password itself, but has not proven its identity.",
            where=where,
            code="connection.unproven",
            remedy=f"{_REMEDY}, or give the account scram-sha-256. To send it anyway: require_auth=password. The "
            "password was not sent",
        )
    if "server does not support SSL" in why:
        return Refused(
            "The PostgreSQL server does not offer TLS, which sslmode requires.",
            where=where,
            code="connection.unproven",
            remedy="enable TLS on the server (ssl = on); if it has TLS, something in between removes it: find out "
            "what. Nothing was sent",
        )
    if "certificate verify failed" in why or "server certificate for" in why:
        return Refused(
            f"The PostgreSQL server's certificate is not accepted: {why}.",
            where=where,
            code="connection.unproven",
            remedy="check that sslrootcert is the authority that signed the server's certificate, and that it names "
            "the host as the URL does; if so, another machine answers for the server. The password was not sent",
        )
    if _WRONG_OPTION.search(why):
        return UsageError(
            f"The URL of the meta database has an option that libpq does not accept: {why}.",
            where=where,
            code="config.invalid",
            remedy="see PostgreSQL's documentation of libpq for its options and their values",
        )
    return None
