"""What each released version has written is read, and continued, by this one."""

from __future__ import annotations

import json
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.released import make

ARCHIVES = sorted(make.FOLDER.glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=[archive.name.removesuffix(".tar.xz") for archive in ARCHIVES])
def test_what_a_released_version_has_written_is_read_and_continued(
    archive: Path, mariadb_target: Any, tmp_path: Path
) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    file = tmp_path / "shop.yaml"
    file.write_text(file.read_text().replace("ROOT", str(tmp_path)))
    expected = json.loads((tmp_path / "expected.json").read_text())
    lockstep = partial(make.command, tmp_path, SHOP="mysql://nobody@127.0.0.1:1", COPY=mariadb_target.url)
    mariadb_target.run(f"DROP DATABASE IF EXISTS {make.DATABASE}")
    client = [*make.MariaDb.client("mariadb"), "--no-defaults", *make.login(mariadb_target)]
    subprocess.run(client, input=(tmp_path / "target.sql").read_bytes(), check=True)

    lockstep("meta", "upgrade", "shop.yaml")
    assert lockstep("stage", "verify", "shop.yaml")
    assert make.state(lockstep, expected["position"]) == expected["then"]
    assert make.rows(mariadb_target) != expected["now"], "the last batch is staged only"
    lockstep("run", "shop.yaml", "--staged")
    assert make.rows(mariadb_target) == expected["now"]
    lockstep("run", "shop.yaml", "--replay")
    assert make.rows(mariadb_target) == expected["now"]
    for (table,) in mariadb_target.run("SHOW TABLES", database=make.DATABASE):
        mariadb_target.run(f"TRUNCATE `{table}`", database=make.DATABASE)
    lockstep("run", "shop.yaml", "--replay")
    assert make.rows(mariadb_target) == expected["now"], "a target from what is staged alone"
