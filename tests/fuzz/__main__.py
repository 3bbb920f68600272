"""`make fuzz`: random tables and histories through the whole product, for as long as it is told.

Each finding is one line of JSON on stdout, with the seed that repeats its round. The exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.fuzz.walk import Round
from tests.lab.forked_commands import ForkedCommands

PAIRS = (("mariadb", "mariadb"), ("mysql", "mysql"), ("mysql", "mariadb"), ("mariadb", "mysql"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no round after this long (default: 600)")
    parser.add_argument("--seed", default="1", help="of the whole run (default: 1)")
    parser.add_argument("--round", help="only the round with this seed, as a finding prints it")
    asked = parser.parse_args()
    with ExitStack() as opened:
        commands = opened.enter_context(ForkedCommands())
        servers = {
            "mariadb": (
                opened.enter_context(MariaDb.start(server_id=1)),
                opened.enter_context(MariaDb.start(server_id=2)),
            ),
            "mysql": (opened.enter_context(MySql.start(server_id=3)), opened.enter_context(MySql.start(server_id=4))),
        }
        began_s, number, found = time.monotonic(), 0, Counter[str]()
        while time.monotonic() - began_s < asked.seconds:
            source, target = PAIRS[number % len(PAIRS)]
            seed = asked.round or f"{asked.seed}/{number}/{source}/{target}"
            _, _, source, target = seed.rsplit("/", 3)
            with tempfile.TemporaryDirectory(prefix="lockstep-fuzz-") as folder:
                for finding in Round(commands, servers[source][0], servers[target][1], seed, Path(folder)).play():
                    print(finding.line, flush=True)
                    found[seed] += 1
            number += 1
            if asked.round:
                break
        print(f"{number} rounds, {len(found)} with findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
