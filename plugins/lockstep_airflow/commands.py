"""Tasks that run a command of `lockstep` as a process of its own, and end as that ends.

What the command notes goes to the log of the task, its document to XCom. It is sent SIGTERM if the task's process ends,
however that ends. It has a session of its own: Airflow kills a task's process group 5 s after it has told it to end,
and a command that undoes what it has made may need longer.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from cdc_core.errors import LockstepError, RetryLater, from_document
from lockstep_airflow.parent_death import die_with_parent

log = logging.getLogger(__name__)


class CommandOperator(BaseOperator):
    """Its subclasses say which commands, and what it means when one ends without an answer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def on_kill(self) -> None:
        self._told = True
        if self._process is not None:
            self._process.terminate()

    def _without_answer(self, how: str) -> RetryLater:
        """how: it ended."""
        raise NotImplementedError

    def _run(self, arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
        """The document of a command. Raises the error that it says, and `_without_answer`."""
        command = [sys.executable, "-m", "cdc_core.cli", *arguments, "--json"]
        log.info("lockstep %s", " ".join(arguments))
        with tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
            if self._told:  # while it was started
                self._process.terminate()
            with self._process as process:
                assert process.stderr is not None
                for line in process.stderr:
                    log.info("%s", line.decode(errors="replace").rstrip())
            said.seek(0)
            document = _document(said.read())
        error = self._error(document, process.returncode)
        if error is not None:
            raise error
        return document

    def _error(self, document: Mapping[str, Any], code: int) -> LockstepError | None:
        if "error" in document:
            return from_document(document["error"])
        if not code and document:
            return None
        return self._without_answer(f"signal {-code}" if code < 0 else f"code {code}")


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
