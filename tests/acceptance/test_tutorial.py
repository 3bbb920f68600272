"""docs/tutorial.md word by word on real servers: every SQL statement, command and piece of a file, in its order."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.mysql import MySql
from tests.lab.forked_commands import ForkedCommands

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BY_HAND = re.compile(r"^### A dump instead of a copy\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""Walked by test_existing_rows.py, on a shop that has rows."""


@pytest.fixture(params=["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A source with the shop of the tutorial, which has been open for a while, and a target without anything."""
    source = request.getfixturevalue(request.param)
    mysql = request.param == "mysql9"
    with MySql.start(server_id=6) if mysql else nullcontext(request.getfixturevalue("mariadb_target")) as target:
        source.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (order_id INT PRIMARY KEY, status VARCHAR(20))",
                   "INSERT INTO shop.orders VALUES (10, 'old'), (11, 'old'), (12, 'old')")  # fmt: skip
        yield source, target
        for server, account in ((source, "cdc"), (target, "writer")):
            drops = [f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "shop_0", "shop_1")]
            server.run(*drops, f"DROP USER IF EXISTS {account}@'%'")


def blocks() -> list[tuple[str, str]]:
    """Kind and text of each piece of code after the installation."""
    found = BLOCK.findall(BY_HAND.sub("", TUTORIAL))
    install = next(at for at, (_, text) in enumerate(found) if "make setup" in text)
    readme = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found[install] in readme, "README and tutorial install in different ways"
    assert install == 0, "a command comes before the installation"
    return list(found[1:])


def test_the_targets_of_the_tutorial_can_be_appended_to_what_init_writes() -> None:
    """A file of init had `targets: []`, which made two of them."""
    from cdc_core.operations import new_pipeline

    catalogue, wishes = new_pipeline.Catalogue((), (), ()), new_pipeline.Wishes("shop", "env:SHOP", (), Path())
    assert not [line for line in new_pipeline._targets(wishes, catalogue) if line.startswith("targets")]


@pytest.mark.spark
def test_the_tutorial_works_as_it_is_written(
    servers: tuple[Any, Any], commands: ForkedCommands, tmp_path: Path
) -> None:
    source, target = servers
    hosts = {"db:3306": f"{source.host}:{source.port}", "shards:3306": f"{target.host}:{target.port}"}
    shell = Shell(commands, tmp_path, hosts)
    file = tmp_path / "shop.yaml"
    ran: list[str] = []
    ledger = ""
    for kind, text in blocks():
        if kind == "sql":
            on = target if "writer" in text else source
            on.run(*(line for line in re.sub(r"--.*", "", text).split(";") if line.strip()))
        elif kind == "yaml":
            file.write_text(file.read_text() + text)
        else:
            for line in text.splitlines():
                ran.append(line.split("#")[0].strip())
                if line.startswith("lockstep extract"):
                    source.run("INSERT INTO shop.orders VALUES (1, 'new'), (2, 'new'), (3, 'new'), (4, 'new')",
                               "UPDATE shop.orders SET status = 'paid' WHERE order_id IN (2, 11)",
                               "DELETE FROM shop.orders WHERE order_id = 12")  # fmt: skip
                shell(line)
                ledger = shell.out if line.startswith("lockstep run") else ledger
                # Everything that the tutorial does is right; until they are copied, existing rows are worth a warning.
                warnings = 0 if any(command.startswith("lockstep snapshot") for command in ran) else 1
                assert not line.startswith("lockstep check") or f"0 problems, {warnings} warning" in shell.out, (
                    shell.out
                )
    assert [line for line in ran if line.startswith("lockstep check")] == ["lockstep check shop.yaml"] * 2
    assert [line.split()[1] for line in ran if line.startswith("lockstep")][-1] == "run"
    assert "shop.orders" in ledger
    shards = (f"SELECT order_id, status FROM shop_{d}.orders_{t}" for d in (0, 1) for t in (0, 1))
    rows = [(1, "new"), (2, "paid"), (3, "new"), (4, "new"), (10, "old"), (11, "paid")]
    assert sorted(target.run(" UNION ALL ".join(shards))) == rows
    assert (tmp_path / "orders.parquet").exists()
    last = TUTORIAL.rpartition("## 6.")[2]
    for command in re.findall(r"`(lockstep [^`]*)`", last.replace("\n", " ")):
        shell(command)
    assert "secret" not in file.read_text()


class Shell:
    """A user's shell in a folder of its own, with what was exported in it. hosts: of the tutorial -> of the test."""

    def __init__(self, commands: ForkedCommands, folder: Path, hosts: dict[str, str]) -> None:
        self._commands, self._folder, self._hosts = commands, folder, hosts
        self._environ = {**os.environ, "COLUMNS": "80"}
        self.out = ""

    def __call__(self, line: str) -> None:
        for name, real in self._hosts.items():
            line = line.replace(f"@{name}", f"@{real}")
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            self._environ |= dict(word.split("=", 1) for word in words)
            return
        assert program == "lockstep", line
        done = self._commands.run(*words, directory=self._folder, environ=self._environ)
        self.out = done.out
        assert done.code == 0, f"{line}: {done}"
