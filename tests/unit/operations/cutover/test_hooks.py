"""The commands by which an application is stopped and switched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cdc_core.errors import Refused
from cdc_core.operations.cutover import hooks
from cdc_core.operations.user_command import require_callable
from tests.lab.refusals import raises


def test_what_a_command_leaves_running_is_neither_waited_for_nor_ended(tmp_path: Path) -> None:
    """A proxy that it has started, for instance, which has its output."""
    command = tmp_path / "switch.sh"
    command.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/left\necho it is done\n")
    command.chmod(0o755)
    told = hooks.variables(hooks.SWITCH, "one", "shop", ["shards"], back=False)
    answer = hooks.switch(str(command), told, 10)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert answer == (hooks.Answer.SWITCHED, "code 0: it is done")


def test_a_command_is_told_what_to_do_and_how_long_it_may_take(tmp_path: Path) -> None:
    command = tmp_path / "switch.sh"
    command.write_text("#!/bin/sh\nenv | grep LOCKSTEP_CUTOVER | sort\n")
    command.chmod(0o755)
    told = hooks.variables(hooks.SWITCH, "one", "shop", ["a", "b"], back=True)
    _, said = hooks.switch(str(command), told, 7.25)
    assert dict(variable.removeprefix("LOCKSTEP_CUTOVER_").split("=") for variable in said.split()[2:]) == {
        "PHASE": "switch", "ID": "one", "PIPELINE": "shop", "TARGET": "a,b", "DIRECTION": "back", "TIMEOUT_S": "7.2",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["./nowhere.sh", "nowhere --fast", "'", " "])
def test_a_command_that_is_not_there_is_refused_before_anything_begins(command: str) -> None:
    with raises(Refused, "hook.missing"):
        require_callable(command, "cutover.switch_with")
    require_callable("sh -c true", "cutover.switch_with")
