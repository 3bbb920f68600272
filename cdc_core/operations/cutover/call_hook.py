"""Calls a user's function, and answers as a command:
`python -m cdc_core.operations.cutover.call_hook MODULE:FUNCTION [--load]`.

It runs in a process of its own, so that one that hangs can be ended. The function is called with what a command finds
in its environment (hooks.py): phase, cutover_id, pipeline and direction. With --load it is not called.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint

from cdc_core.operations.cutover.hooks import FAILED, NOT_SWITCHED, ONLY_LOAD, SWITCH


def main(reference: str, *options: str) -> int:
    """What the function raises ends the process with FAILED, as it does any process."""
    try:
        function = EntryPoint(reference, reference, "lockstep.cutover").load()
    except (ImportError, AttributeError, SystemExit) as error:  # it was not called
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return NOT_SWITCHED
    if ONLY_LOAD in options:
        return 0 if callable(function) else FAILED
    told = {
        keyword: os.environ[f"LOCKSTEP_CUTOVER_{variable}"]
        for keyword, variable in (
            ("phase", "PHASE"),
            ("cutover_id", "ID"),
            ("pipeline", "PIPELINE"),
            ("direction", "DIRECTION"),
        )
    }
    try:
        answer = function(**told)
    except SystemExit:
        return FAILED
    if told["phase"] != SWITCH or answer is True:
        return 0
    if answer is False:
        return NOT_SWITCHED
    sys.stdout.write(f"the function returned {type(answer).__name__}, and not True or False\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
