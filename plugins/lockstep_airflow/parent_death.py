"""A child process that does not outlive the task that started it.

Airflow retries a task whose process was killed. The killed task's command would continue alongside the retry's. Linux
ends it with its parent.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here, not between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For Popen's preexec_fn: the kernel sends SIGTERM when the parent dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
