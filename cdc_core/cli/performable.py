"""Makes the commands in a remedy ready to copy: they name the pipeline as the running command does.

Errors come from packages that do not know the command line. They write PIPELINE, or leave the pipeline out, or give its
name. A name leads to the file only from the folder of pipelines and from the file's own folder, and only if the file
has that name.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.exceptions import TyperException

from cdc_core.cli.options import load_pipeline, pipeline_path
from cdc_core.errors import UsageError

_COMMAND = re.compile(r"`lockstep\s([^`]*)`")


def performable(remedy: str) -> str:
    """The remedy of an error of the command that runs."""
    if not _COMMAND.search(remedy):
        return remedy
    from cdc_core.cli.app import command_tree

    tree = command_tree()
    command, at = _find_command(tree, sys.argv[1:])
    try:
        context = command.make_context(None, sys.argv[1 + at :], resilient_parsing=True)
        given, folder = str(context.params["pipeline"] or ""), Path(context.params["pipelines"])
    except (TyperException, KeyError):
        given = ""
    if not given:
        return remedy

    def reference(name: str) -> str:
        """The pipeline's name if that leads to its file; else the file beside the given one, or the given one."""
        with suppress(UsageError):
            pipeline_path(name, folder)
            return name
        beside = Path(given).with_name(f"{name}.yaml")
        if beside.is_file():
            return str(beside)
        with suppress(UsageError):
            if load_pipeline(given, folder)[1].pipeline == name:
                return given
        return name

    def fill(match: re.Match[str]) -> str:
        words = [given if word == "PIPELINE" else word for word in match[1].split()]
        command, at = _find_command(tree, words)
        if any(parameter.name == "pipeline" for parameter in command.params):
            if at == len(words) or words[at].startswith("-"):
                words.insert(at, given)
            words[at] = shlex.quote(reference(words[at]))
            if "--pipelines" in sys.argv:
                words += ["--pipelines", shlex.quote(str(folder))]
        return f"`lockstep {' '.join(words)}`"

    return _COMMAND.sub(fill, remedy)


def _find_command(tree: Any, words: list[str]) -> tuple[Any, int]:
    """The command that the words begin with, after options of all commands, and where its arguments begin."""
    command, at = tree, 0
    while at < len(words) and (
        words[at] in getattr(command, "commands", {}) or (command is tree and words[at][:1] == "-")
    ):
        command, at = command.commands.get(words[at], command), at + 1
    return command, at
