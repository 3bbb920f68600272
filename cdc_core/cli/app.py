"""The typer application, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import traceback
from functools import cache
from typing import Annotated, Any, cast

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from cdc_core.cli import (
    check,
    cutover,
    dbt,
    ddl,
    extract,
    forget,
    init,
    lake,
    meta,
    repair,
    reshard,
    run,
    snapshot,
    stage,
    status,
    target,
    verify,
)
from cdc_core.cli.output import print_error
from cdc_core.errors import InternalError, LockstepError, RetryLater, UsageError
from cdc_core.process.account import settled
from cdc_core.process.leaving import at_the_last, leave_on_signals, unwound
from cdc_core.process.quiet_libraries import quiet_libraries

app = typer.Typer(
    name="lockstep",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 2 usage, 3 refused, 4 data at risk, 75 retry later, 70 internal (docs/errors.md).",
)
for module in (
    init,
    check,
    extract,
    snapshot,
    run,
    verify,
    repair,
    forget,
    reshard,
    status,
    stage,
    target,
    lake,
    dbt,
    ddl,
    cutover,
    meta,
):
    app.add_typer(module.app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"lockstep {version('lockstep-cdc')}\n")
        raise typer.Exit


@app.callback()
def lockstep(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, envvar="LOCKSTEP_VERBOSE", help="Log progress; -vv logs more.")
    ] = 0,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar="LOCKSTEP_DEBUG", help="Show tracebacks of errors. May also follow the command."
        ),
    ] = False,
) -> None:
    """Stage every committed change of MySQL and MariaDB as Parquet, apply it to targets, and prove that nothing was
    lost.

    A first pipeline:

    \b
      export SHOP=mysql://cdc:secret@db:3306
      lockstep init shop --source env:SHOP --include 'shop\\..*'
      lockstep check shop.yaml
      lockstep snapshot shop.yaml
      lockstep extract shop.yaml --until now
      lockstep stage sql shop.yaml 'SELECT count(*) FROM "shop.orders"'
    """
    levels = (logging.WARNING, logging.INFO, logging.DEBUG)
    handler = logging.StreamHandler()
    logging.basicConfig(
        level=levels[min(verbose, 2)], handlers=[handler], format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    quiet_libraries()
    if debug:
        os.environ["LOCKSTEP_DEBUG"] = "1"


@cache
def command_tree() -> Any:
    """All commands, made from the functions' signatures, which takes a tenth of a second."""
    return get_command(app)


INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes of a command that a signal has ended, as shells have them."""


def main() -> None:
    """The console script: runs a command and leaves with the exit code of docs/errors.md."""
    os.environ.update(settled(os.environ))
    # Measured: Arrow's own allocator takes a new page for nearly every buffer, up to half of a command's CPU time.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what was done must not fail because of how it is told
    leave_on_signals()
    as_json = "--json" in sys.argv[1:] or _switch("LOCKSTEP_JSON")
    at_the_last(last := lambda: print_error(_interrupted(), as_json=as_json))
    try:
        # --debug may follow the command, to which it does not belong.
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument != "--debug")
        code = command_tree()(prog_name="lockstep", standalone_mode=False)
    except LockstepError as error:
        code = _fail(error, as_json)
    except TyperException as error:
        # A group without a command has shown its help by raising this.
        code = 2 if type(error).__name__ == "NoArgsIsHelpError" else _fail(_usage(error), as_json)
    except SystemExit as left:
        code = left.code
    except BrokenPipeError:
        # The reader of our answer has left (`| head`): nothing more to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:  # noqa: BLE001 - the last line of defence: say how to report it
        code = _fail(_unexpected(error), as_json)
    unwound(last)
    if code in (INTERRUPTED, TERMINATED):
        _fail(_interrupted(), as_json)
    if "duckdb" not in sys.modules:  # which reports each of its objects that it still finds at the end
        gc.freeze()  # measured: to look for cycles in a process that ends takes an eighth of a short command
    sys.exit(code if isinstance(code, int) else 0)


def _switch(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no", "off")


def _fail(error: LockstepError, as_json: bool) -> int:
    if _switch("LOCKSTEP_DEBUG") and sys.exc_info()[0] is not None:
        sys.stderr.write(traceback.format_exc())
    print_error(error, as_json=as_json)
    return error.exit_code


def _usage(error: TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "lockstep"
    return UsageError(
        error.format_message(),
        where=command,
        code="usage.argument",
        remedy=f"see `{command} --help` for how it is used",
    )


def _interrupted() -> RetryLater:
    return RetryLater(
        "Stopped by a signal. Completed work is kept; the next attempt does the rest.",
        code="run.interrupted",
        remedy="run the same command again",
    )


def _unexpected(error: Exception) -> LockstepError:
    if type(error).__module__ == "pymysql.err":
        from cdc_core.mysql.server_errors import explained

        return explained(cast(Any, error), where="a statement of Lockstep's")
    last = traceback.extract_tb(error.__traceback__)[-1]
    return InternalError(
        f"Unexpected {type(error).__name__}: {error}",
        where=f"{last.filename}:{last.lineno}",
        remedy="nothing staged is lost; run again with --debug and report the traceback (CONTRIBUTING.md, 'Reporting a "
        "defect')",
    )
