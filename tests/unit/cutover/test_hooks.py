"""The commands by which an application is stopped and switched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cdc_core.cutover import hooks


def test_what_a_command_leaves_running_is_neither_waited_for_nor_ended(tmp_path: Path) -> None:
    """A proxy that it has started, for instance, which has its output."""
    command = tmp_path / "switch.sh"
    command.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/left\necho it is done\n")
    command.chmod(0o755)
    told = hooks.variables(hooks.SWITCH, "one", "shop", back=False)
    answer = hooks.switch(str(command), told, 10, None)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert answer == (hooks.Answer.SWITCHED, "code 0: it is done")
