"""The command line, called in this process: what it answers, what it says beside, and its exit code."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cdc_core.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def lockstep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    handlers, level = logging.root.handlers[:], logging.root.level
    handled = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: object) -> Done:
        monkeypatch.setattr("sys.argv", ["lockstep", *(str(argument) for argument in arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)

    yield call
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    for number, handler in handled.items():
        signal.signal(number, handler)
