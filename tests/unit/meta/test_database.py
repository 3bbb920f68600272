"""Opening the meta database: which URLs, whose tables, and what goes wrong with a file."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from cdc_core.errors import LockstepError, Refused, RetryLater, UsageError, severity
from cdc_core.meta import Meta, migrate
from tests.lab.made_batches import manifest
from tests.lab.refusals import refusal
from tests.lab.shell import export

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cdc_core.meta", "hypothesis", "alembic.autogenerate", "pytest"])


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_new_file_gets_its_directory_and_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "new" / "meta.db"
    with Meta.open(url_of(path), "line") as meta:
        assert meta.positions.checkpoint("shop") is None
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT version_num FROM lockstep_version").fetchone() == (migrate.head(),)


def _open_at_once(path: Path, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        with Meta.open(url_of(path), "line") as meta:
            answers.put(repr(meta.positions.checkpoint("shop")))
    except LockstepError as error:
        answers.put(error.code)


def test_processes_that_open_one_new_file_at_once_all_can(tmp_path: Path) -> None:
    barrier, answers = PROCESSES.Barrier(3), PROCESSES.Queue()
    path = tmp_path / "meta.db"
    openers = [PROCESSES.Process(target=_open_at_once, args=(path, barrier, answers)) for _ in range(3)]
    for opener in openers:
        opener.start()
    assert [answers.get(timeout=60) for _ in openers] == ["None"] * 3
    for opener in openers:
        opener.join()


def test_a_new_file_that_another_process_is_writing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        error = refusal(lambda: Meta.open(url_of(path), "line", busy_timeout_s=0.1))
        assert (severity(type(error)), error.code) == (RetryLater, "meta.busy")
        with monkeypatch.context() as patched:  # another thread that sleeps later may find the writer closed
            patched.setattr(time, "sleep", lambda _seconds: writer.in_transaction and writer.execute("COMMIT"))
            Meta.open(url_of(path), "line").close()


def test_a_file_that_gets_its_tables_from_another_while_it_is_looked_at_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, current = tmp_path / "meta.db", migrate.current

    def between(connection: Any) -> str | None:
        found = current(connection)
        if found is None:
            monkeypatch.setattr(migrate, "current", current)
            Meta.open(url_of(path), "line").close()
        return found

    monkeypatch.setattr(migrate, "current", between)
    with Meta.open(url_of(path), "line") as meta:
        assert meta.positions.checkpoint("shop") is None


def test_the_first_command_makes_the_tables_beside_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    error = refusal(lambda: Meta.open(url_of(path), "line", create=False))
    assert (severity(type(error)), error.code) == (Refused, "meta.absent")
    Meta.open(url_of(path), "line").close()
    Meta.open(url_of(path), "line", create=False).close()


def test_a_database_of_a_newer_lockstep_is_refused_even_for_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    Meta.open(url_of(path), "line").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE lockstep_version SET version_num = '9999'")
    for upgrade in (False, True):
        error = refusal(lambda upgrade=upgrade: Meta.open(url_of(path), "line", upgrade=upgrade))
        assert (severity(type(error)), error.code) == (Refused, "install.version")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///meta.db",
        "oracle://h/d",
        "postgresql://host",
        "env:",
        "sqlite:///x?mode=memory",
    ],
)
def test_urls_that_cannot_be_meta_are_usage_errors(url: str) -> None:
    assert isinstance(refusal(lambda: Meta.open(url, "line")), UsageError)


def test_a_password_in_the_pipeline_file_is_refused_and_not_shown() -> None:
    error = refusal(lambda: Meta.open("postgresql://me:s3cret@127.0.0.1:1/meta", "line"))
    assert (severity(type(error)), error.code) == (UsageError, "config.invalid")
    assert "s3cret" not in str(error)


def test_a_variable_names_the_database_and_an_unset_one_says_so(tmp_path: Path) -> None:
    export({"META": url_of(tmp_path / "meta.db")})
    with Meta.open("env:META", "line") as meta:
        assert "meta.db" in repr(meta)
    error = refusal(lambda: Meta.open("env:UNSET", "line"))
    assert (error.code, "UNSET" in error.what) == ("config.unset", True)


def test_what_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    diary = tmp_path / "meta.db"
    diary.write_bytes(b"my diary, keep it" * 100)
    for path in (diary, diary / "meta.db", tmp_path):
        error = refusal(lambda path=path: Meta.open(url_of(path), "line"))
        assert (severity(type(error)), error.code) == (Refused, "disk.not_permitted")
    assert diary.read_bytes() == b"my diary, keep it" * 100


def test_a_writer_that_does_not_end_makes_others_retry_later_and_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    with Meta.open(url_of(path), "line", busy_timeout_s=0.1) as meta:
        lease = meta.leases.acquire("shop", "one", 60)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        error = refusal(lambda: meta.batches.commit(lease, manifest(0)))
        assert (severity(type(error)), error.code) == (RetryLater, "meta.busy")
        assert "Another process" in error.what, "it is this one, by another connection"
        assert meta.positions.checkpoint("shop") is None  # who reads is not held up
        blocker.execute("ROLLBACK")
        blocker.close()
        meta.batches.commit(lease, manifest(0))


def test_a_full_disk_makes_the_commit_of_a_batch_retry_later_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    many = manifest(0, tables={f"shop.t{number}": 1 for number in range(300)})
    with Meta.open(url_of(path), "line") as meta:
        lease = meta.leases.acquire("shop", "one", 60)
        full = _with_page_limit(meta)
        error = refusal(lambda: meta.batches.commit(lease, many))
        assert (severity(type(error)), error.code) == (RetryLater, "disk.error")
        full()
        assert meta.positions.checkpoint("shop") is None
        assert meta.batches.find("shop") == ()
        meta.batches.commit(lease, many)


def _with_page_limit(meta: Meta) -> Callable[[], None]:
    """SQLite answers as on a full disk once a file may not grow; returns what lets it grow again."""
    from sqlalchemy import event

    engine = meta._database._engine

    def limit(dbapi: sqlite3.Connection, _record: object) -> None:
        pages = dbapi.execute("PRAGMA page_count").fetchone()[0]
        dbapi.execute(f"PRAGMA max_page_count = {pages + 1}")

    def unlimited() -> None:
        event.remove(engine, "connect", limit)
        engine.dispose()

    event.listen(engine, "connect", limit)
    engine.dispose()  # the limit is a connection's
    return unlimited


def test_a_process_forked_from_one_with_an_open_meta_can_use_it(tmp_path: Path) -> None:
    """Airflow forks its tasks."""
    with Meta.open(url_of(tmp_path / "meta.db"), "line") as meta:
        meta.leases.acquire("shop", "parent", 60)
        child = os.fork()
        if child == 0:
            try:
                inherited = [file for file in _open_files() if file.startswith(str(tmp_path))]
                meta.leases.acquire("other", "child", 60)
                os._exit(3 if inherited else 0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        meta.leases.acquire("third", "parent", 60)


def _open_files() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{descriptor}")


def test_a_connection_stays_open_between_transactions_and_none_after_the_end(tmp_path: Path) -> None:
    """The last one to close a file writes its log into it, which takes longer than most transactions."""
    log = tmp_path / "meta.db-wal"
    with Meta.open(url_of(tmp_path / "meta.db"), "line") as meta:
        meta.leases.acquire("shop", "one", 60)
        assert log.exists()
    assert not log.exists()
    assert not [file for file in _open_files() if file.startswith(str(tmp_path))]


def test_an_opening_in_the_same_process_leaves_the_locks_of_a_connection_that_is_open(tmp_path: Path) -> None:
    """Without them another process takes its own connection for the last one: as it closes it, it deletes the log file
    that this one still writes to, and the database is damaged."""
    path = tmp_path / "meta.db"
    log = tmp_path / "meta.db-wal"
    with Meta.open(url_of(path), "line") as meta:
        meta.positions.checkpoint("shop")
        with Meta.open(url_of(path), "line"):
            pass
        before = log.stat().st_ino
        visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT 1 FROM lease'); c.close()"
        subprocess.run([sys.executable, "-c", visit, str(path)], check=True)
        assert log.stat().st_ino == before
        meta.positions.checkpoint("shop")


def test_what_is_written_after_the_file_was_replaced_is_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    with Meta.open(url_of(path), "line") as meta:
        meta.leases.acquire("shop", "one", 60)
        saved = tmp_path / "saved.db"
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(saved)) as new:
            old.backup(new)
        for name in ("meta.db", "meta.db-wal", "meta.db-shm"):
            (tmp_path / name).unlink()
        saved.rename(path)
        meta.leases.acquire("other", "one", 60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM lease").fetchone() == (2,)


def test_the_migrations_are_part_of_the_package() -> None:
    """The script location is a package: it must be there wherever Lockstep is installed."""
    assert migrate.head() == "0001"
    config = Config()
    config.set_main_option("script_location", "cdc_core.meta:migrations")
    by_alembic = [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()]
    assert list(reversed(by_alembic)) == migrate._revisions()
    assert migrate.known(migrate.head())
    assert not migrate.known("9999")
