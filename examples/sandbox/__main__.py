"""Downloads the servers that need no root, so that nothing later waits for them.

python -m examples.sandbox fetch [mariadb] [postgres] [s3]      all of them when none is named
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples.sandbox.artifacts import S3PROXY, fetch
from examples.sandbox.cache import SandboxError
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.postgres import Postgres

FETCH: dict[str, Callable[[], Path]] = {
    "mariadb": MariaDb.fetch,
    "postgres": Postgres.fetch,
    "s3": lambda: fetch(S3PROXY),
}


def main(arguments: list[str]) -> int:
    if arguments[:1] != ["fetch"] or not set(arguments[1:]) <= FETCH.keys():
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with ThreadPoolExecutor(thread_name_prefix="fetch") as pool:
            for fetched in [pool.submit(FETCH[name]) for name in arguments[1:] or FETCH]:
                fetched.result()
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
