"""A Chromium without a screen, for tests: the one that setup_browser.py lays into the cache, or one on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from examples.sandbox.cache import SandboxError, cache_dir

FOLDER = "chromium"
_ON_PATH = ("chromium-headless-shell", "chromium", "google-chrome")


@dataclass(frozen=True)
class Browser:
    """An executable and the whole environment to start it in."""

    executable: Path
    environment: dict[str, str]


def find() -> Browser:
    """The browser; SandboxError where there is none that starts."""
    browser = _of_tree(cache_dir() / FOLDER) or _on_path()
    if browser is None:
        raise SandboxError("Chromium was not found: run `make browser` (Debian, as root) or put a chromium on PATH")
    done = subprocess.run(
        [browser.executable, "--version"], capture_output=True, text=True, env=browser.environment, check=False
    )
    if done.returncode != 0:
        raise SandboxError(
            f"{browser.executable} does not start; put another chromium on PATH, or remove {cache_dir() / FOLDER} "
            f"and run `make browser` again: {done.stderr[-500:].strip()}"
        )
    return browser


def available() -> str | None:
    """None when a browser can be started, else the reason why not."""
    try:
        find()
    except SandboxError as error:
        return str(error)
    return None


def _of_tree(root: Path) -> Browser | None:
    executable = root / "usr/lib/chromium/chromium-headless-shell"
    if not executable.exists():
        return None
    libraries = [
        path for pattern in ("*-linux-gnu", "*-linux-gnu/pulseaudio") for path in root.glob(f"usr/lib/{pattern}")
    ]
    paths = {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "FONTCONFIG_SYSROOT": str(root)}
    return Browser(executable, {**os.environ, **paths})


def _on_path() -> Browser | None:
    found = next(filter(None, map(shutil.which, _ON_PATH)), None)
    return None if found is None else Browser(Path(found), dict(os.environ))
