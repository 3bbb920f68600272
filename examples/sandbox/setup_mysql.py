"""Installs MySQL's own server outside the system: a small Debian tree in the cache.

python -m examples.sandbox.setup_mysql [--if-possible]

LOCKSTEP_MYSQL=8.0 takes that release instead of MySQL 9, from Ubuntu.
"""

from __future__ import annotations

import sys

from examples.sandbox.debian import Tree
from examples.sandbox.mysql import FOLDER, RELEASE, MySql

_SUITES = {
    # Debian's stable releases have MariaDB only; unstable carries MySQL's long-term release.
    "9": ("sid", None, "mysql-server-core,mysql-client-core"),
    "8.0": ("jammy", "http://archive.ubuntu.com/ubuntu", "mysql-server-core-8.0,mysql-client-core-8.0"),
}
if RELEASE not in _SUITES:
    raise SystemExit(f"LOCKSTEP_MYSQL is {RELEASE!r}; there are {' and '.join(_SUITES)}")
_SUITE, _MIRROR, _PACKAGES = _SUITES[RELEASE]

MYSQL = Tree(
    name=f"MySQL {RELEASE}",
    folder=FOLDER,
    suite=_SUITE,
    mirror=_MIRROR,
    packages=_PACKAGES,
    size_mb=650,
    target="mysql",
    otherwise="put a mysqld on PATH",
    available=MySql.available,
)

if __name__ == "__main__":
    sys.exit(MYSQL.main())
