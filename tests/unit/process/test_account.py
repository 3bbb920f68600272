"""Where a process keeps its files on accounts without a name or a home, and what it says without UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cdc_core.process import account

NOBODY = 54_321


@pytest.mark.parametrize("home", [None, "/", "/nonexistent"])
def test_an_account_without_name_and_home_gets_folders_of_its_own(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/")
    given = {} if home is None else {"HOME": home}
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with monkeypatch.context() as other:
        other.setattr(account, "is_named", lambda: False)
        found = account.settled(given)
    assert found["HOME"] == str(tmp_path / f"lockstep-{os.getuid()}")
    assert Path(found["HOME"]).stat().st_mode & 0o777 == 0o700
    assert found["USER"] == found["SPARK_USER"] == str(os.getuid())
    assert f"-Duser.home={found['HOME']}" in found["SPARK_SUBMIT_OPTS"]
    assert account.settled(found | {"LOGNAME": "x"})["HOME"] == found["HOME"]


def test_a_folder_that_another_account_could_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"lockstep-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"lockstep-{os.getuid()}").chmod(0o777)
    home = account.settled({"HOME": "/nonexistent"})["HOME"]
    assert Path(home).parent == tmp_path
    assert Path(home).stat().st_mode & 0o777 == 0o700


def test_a_home_that_was_named_is_used() -> None:
    assert account.settled({"HOME": "/tmp"})["HOME"] == "/tmp"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_terminal_cannot_show_is_escaped(as_json: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cdc_core.cli", "check", "größe.yaml", *(["--json"] if as_json else [])]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, env=environ, cwd=tmp_path, check=False)
    assert done.returncode == 2, done
    if as_json:
        assert "größe.yaml" in json.dumps(json.loads(done.stdout.decode("ascii")), ensure_ascii=False)
    else:
        assert r"gr\xf6\xdfe.yaml" in done.stderr.decode("ascii")
