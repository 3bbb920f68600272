"""The user's command that runs an online schema change tool for a statement that copies the table.

It is called for each shard, twice, with LOCKSTEP_DDL_PHASE:

    start      bring the copy into step with the table, exchange nothing yet, and end with code 0
    complete   exchange the two, and end with code 0

A copy may take days, so that nothing ends a call. `complete` is called once `start` has succeeded for every shard.
Either may be called again after a kill; whether a shard has its new definition, Lockstep sees itself. With gh-ost,
`start` runs it with --postpone-cut-over-flag-file, and `complete` removes the file.
"""

from __future__ import annotations

import logging

from cdc_core.errors import RetryLater
from cdc_core.mysql.connections import Server
from cdc_core.operations.ddl.script import ScriptStatement
from cdc_core.operations.user_command import run_command
from cdc_core.targets.reading.sharding import ShardTable

log = logging.getLogger(__name__)

START, COMPLETE = "start", "complete"


def call(command: str, phase: str, place: ShardTable, server: Server, statement: ScriptStatement) -> None:
    """Raises Refused (hook.missing) for a command that cannot be run, RetryLater (hook.failed)."""
    variables = {
        "LOCKSTEP_DDL_PHASE": phase,
        "LOCKSTEP_DDL_HOST": server.host,
        "LOCKSTEP_DDL_PORT": str(server.port),
        "LOCKSTEP_DDL_USER": server.user,
        "LOCKSTEP_DDL_PASSWORD": server.password,
        "LOCKSTEP_DDL_SSL_MODE": server.tls.mode.value,
        "LOCKSTEP_DDL_SSL_CA": server.tls.ca,
        "LOCKSTEP_DDL_SSL_CERT": server.tls.cert,
        "LOCKSTEP_DDL_SSL_KEY": server.tls.key,
        "LOCKSTEP_DDL_SSL_KEY_PASSWORD": server.tls.key_password,
        "LOCKSTEP_DDL_DATABASE": place.database,
        "LOCKSTEP_DDL_TABLE": place.table,
        "LOCKSTEP_DDL_CLAUSES": statement.clauses,
        "LOCKSTEP_DDL_SHARD": str(place.shard),
    }
    secrets = server.password, server.tls.key_password
    code, said = run_command(command, variables, "--copy-with", secrets=secrets)
    log.info("%s: %s: exit %s: %s", place.name, phase, code, said)
    if code:
        raise RetryLater(
            f"The command for copies ended with {code} for {place.name} ({phase}): {said}",
            where=place.name,
            code="hook.failed",
            remedy="fix what the tool reports; `lockstep ddl resume` with the same --copy-with calls it again",
        )
