"""python -m examples.sandbox fetch: downloads every server that needs no root, so that nothing later waits for it."""

from __future__ import annotations

import sys

from examples.sandbox.artifacts import S3PROXY, fetch
from examples.sandbox.cache import SandboxError
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.postgres import Postgres


def main(arguments: list[str]) -> int:
    if arguments != ["fetch"]:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        MariaDb.fetch()
        Postgres.fetch()
        fetch(S3PROXY)
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
