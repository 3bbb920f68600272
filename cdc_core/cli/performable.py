"""Makes the commands in a remedy ready to copy: they name the pipeline of the command that prints them.

Errors come from packages that do not know the pipeline's name on the command line. They write PIPELINE instead, or
leave the name out.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

from typer.exceptions import TyperException
from typer.main import get_command

_COMMAND = re.compile(r"`lockstep\s([^`]*)`")


def performable(remedy: str) -> str:
    """The remedy of an error of the command that runs."""
    if not _COMMAND.search(remedy):
        return remedy
    tree = _tree()
    command, at = _led(tree, sys.argv[1:])
    try:
        given = command.make_context(None, sys.argv[1 + at :], resilient_parsing=True).params.get("pipeline")
    except TyperException:
        given = None

    def filled(match: re.Match[str]) -> str:
        words = [given if one == "PIPELINE" else one for one in match[1].split()]
        command, at = _led(tree, words)
        if any(one.name == "pipeline" for one in command.params) and (at == len(words) or words[at].startswith("-")):
            words.insert(at, given)
        return f"`lockstep {' '.join(words)}`"

    return _COMMAND.sub(filled, remedy) if given else remedy


@cache
def _tree() -> Any:
    """All commands: made from the functions' signatures, which takes a while."""
    from cdc_core.cli.app import app

    return get_command(app)


def _led(tree: Any, words: list[str]) -> tuple[Any, int]:
    """The command that the words begin with, after options of all commands, and where its arguments begin."""
    command, at = tree, 0
    while at < len(words) and (
        words[at] in getattr(command, "commands", {}) or (command is tree and words[at][:1] == "-")
    ):
        command, at = command.commands.get(words[at], command), at + 1
    return command, at
