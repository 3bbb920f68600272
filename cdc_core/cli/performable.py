"""Makes the commands in a remedy ready to copy: they name the pipeline as the command did that prints them.

Errors come from packages that do not know the command line. They write PIPELINE or leave the pipeline out, or they give
its name, which leads to its file only from the folder of pipelines and from the file's own.
"""

from __future__ import annotations

import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

from typer.exceptions import TyperException
from typer.main import get_command

from cdc_core.cli.options import pipeline_path
from cdc_core.errors import UsageError

_COMMAND = re.compile(r"`lockstep\s([^`]*)`")


def performable(remedy: str) -> str:
    """The remedy of an error of the command that runs."""
    if not _COMMAND.search(remedy):
        return remedy
    tree = _tree()
    command, at = _led(tree, sys.argv[1:])
    try:
        context = command.make_context(None, sys.argv[1 + at :], resilient_parsing=True)
        given, folder = str(context.params["pipeline"] or ""), Path(context.params["pipelines"])
    except (TyperException, KeyError):
        given = ""
    if not given:
        return remedy

    def written(name: str) -> str:
        """The pipeline's name if that leads to its file, otherwise the file beside the given one."""
        try:
            pipeline_path(name, folder)
        except UsageError:
            beside = Path(given).with_name(f"{name}.yaml")
            return str(beside) if beside.is_file() else name
        return name

    def filled(match: re.Match[str]) -> str:
        words = [given if one == "PIPELINE" else one for one in match[1].split()]
        command, at = _led(tree, words)
        if any(one.name == "pipeline" for one in command.params):
            if at == len(words) or words[at].startswith("-"):
                words.insert(at, given)
            words[at] = shlex.quote(written(words[at]))
            if "--pipelines" in sys.argv:
                words += ["--pipelines", shlex.quote(str(folder))]
        return f"`lockstep {' '.join(words)}`"

    return _COMMAND.sub(filled, remedy)


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
