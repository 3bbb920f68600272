"""Installs a headless Chromium outside the system: a small Debian tree in the cache.

python -m examples.sandbox.setup_browser [--if-possible]
"""

from __future__ import annotations

import sys

from examples.sandbox.browser import FOLDER, available
from examples.sandbox.debian import Tree

BROWSER = Tree(
    name="Chromium",
    folder=FOLDER,
    suite=None,  # It runs with the machine's own loader and C library: those of the same release fit.
    packages="chromium-headless-shell,fonts-dejavu-core",
    size_mb=750,
    target="browser",
    otherwise="put a chromium on PATH",
    available=available,
)

if __name__ == "__main__":
    sys.exit(BROWSER.main())
