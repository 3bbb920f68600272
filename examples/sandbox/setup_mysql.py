"""Lays MySQL's own server beside the system: a small Debian tree in the cache.

python -m examples.sandbox.setup_mysql [--if-possible]
"""

from __future__ import annotations

import sys

from examples.sandbox.debian import Tree
from examples.sandbox.mysql import FOLDER, MySql

MYSQL = Tree(
    name="MySQL 9",
    folder=FOLDER,
    suite="sid",  # Debian's stable releases have MariaDB only; unstable carries MySQL's long-term release.
    packages="mysql-server-core,mysql-client-core",
    size_mb=650,
    target="mysql",
    otherwise="put a mysqld on PATH",
    available=MySql.available,
)

if __name__ == "__main__":
    sys.exit(MYSQL.main())
