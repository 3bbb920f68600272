"""Runs one server and outlives the process that asked for it just long enough to end the server.

    guard.py USER REMOVE COMMAND...     USER, REMOVE: '-' for none

USER is whom the server runs as, REMOVE the folder to remove when the parent is gone.
Standard input is a pipe from the parent: each byte is a signal to send to the server, and its end means that the
parent is gone, by SIGKILL too: the server is killed then. Standard output gets one line, the server's pid; the
server's own output goes to the guard's standard error, a log file.

Why not PR_SET_PDEATHSIG alone: it fires when the *thread* that started the server ends. Here the guard, which has
one thread, starts it, so the signal covers the guard's own death, and the pipe covers the parent's.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PARENT_CHECK_MS = 1000


def main() -> int:
    user, remove, *command = sys.argv[1:]
    parent = os.getppid()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # only the parent's word or death counts
        signal.signal(ignored, signal.SIG_IGN)
    account = pwd.getpwnam(user) if user != "-" else None
    libc = ctypes.CDLL(None, use_errno=True)

    def in_child() -> None:
        for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(restored, signal.SIG_DFL)
        if account is not None:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it

    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True, preexec_fn=in_child
    )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.close()

    ended = os.pidfd_open(server.pid)
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.register(ended, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(PARENT_CHECK_MS)}
        if ended in ready:
            return server.wait() & 0xFF
        orders = os.read(0, 16) if 0 in ready else None
        # A fork of the parent may hold the pipe open after it: hence also the look at who our parent is.
        if orders == b"" or os.getppid() != parent:
            break
        for order in orders or b"":
            server.send_signal(order)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if remove != "-":
        shutil.rmtree(remove, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
