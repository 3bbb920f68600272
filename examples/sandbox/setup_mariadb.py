"""Installs the newest MariaDB outside the system: a small Debian tree in the cache.

python -m examples.sandbox.setup_mariadb [--if-possible]
"""

from __future__ import annotations

import sys

from examples.sandbox.debian import Tree
from examples.sandbox.mariadb import FOLDER, NEWEST, NewestMariaDb

NEWEST_MARIADB = Tree(
    name=f"MariaDB {NEWEST}",
    folder=FOLDER,
    suite="sid",
    packages="mariadb-server-core,mariadb-client",
    size_mb=260,
    target="mariadb",
    otherwise="do without the newest MariaDB",
    available=NewestMariaDb.available,
)

if __name__ == "__main__":
    sys.exit(NEWEST_MARIADB.main())
