"""`start` of a source that is already extracted: whatever it is changed to is ignored, and `check` says so."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest


@pytest.fixture(params=["mariadb", "mysql9"])
def shop(request: pytest.FixtureRequest, lockstep: Any) -> Iterator[Any]:
    """A server with a database of one table, and a pipeline `shop.yaml` on it."""
    server = request.getfixturevalue(request.param)
    name = f"t_{uuid.uuid4().hex[:12]}"
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.orders (id INT PRIMARY KEY)")
        lockstep.init(server, name)
        yield cursor


def gtids(cursor: Any) -> str:
    cursor.execute("SELECT VERSION()")
    mariadb = "MariaDB" in cursor.fetchone()[0]
    cursor.execute(f"SELECT {'@@gtid_binlog_pos' if mariadb else '@@gtid_executed'}")
    return str(cursor.fetchone()[0]).replace("\n", "")


def test_check_says_that_a_start_changed_in_any_way_is_ignored(shop: Any, lockstep: Any) -> None:
    begins, known = partial(warned, lockstep), gtids(shop)
    assert begins(f"{{gtid: '{known}'}}") == []
    lockstep("extract", "shop.yaml")
    assert begins(f"{{gtid: '{known}'}}") == []
    assert begins(f"{{gtid: ' {known.upper()}'}}") == []  # the same set in other letters
    assert begins("latest") == []  # as if it was left out
    earlier = f"{known.partition(':')[0]}:1" if ":" in known else "0-1-1"
    moment = (datetime.now(UTC) - timedelta(hours=3)).replace(microsecond=0)
    for start, part in (
        (f"{{gtid: '{earlier}'}}", earlier),
        ("{position: {file: binlog.000001, offset: 4}}", "binlog.000001:4"),
        ("earliest", "earliest"),
        (f"{{timestamp: '{moment.isoformat()}'}}", moment.isoformat()[:19]),
    ):
        (said,) = begins(start)
        assert part in said


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_check_compares_a_start_by_time_with_the_time_that_was_asked_for(shop: Any, lockstep: Any) -> None:
    begins = partial(warned, lockstep)
    shop.execute("SELECT UTC_TIMESTAMP()")
    moment = shop.fetchone()[0].replace(tzinfo=UTC)
    begins(f"{{timestamp: '{moment.isoformat()}'}}")
    lockstep("extract", "shop.yaml")
    assert begins(f"{{timestamp: '{moment.isoformat()}'}}") == []
    assert begins(f"{{timestamp: '{moment.isoformat().replace('+00:00', 'Z')}'}}") == []
    later = moment + timedelta(seconds=1)
    (said,) = begins(f"{{timestamp: '{later.isoformat()}'}}")
    assert later.isoformat()[:19] in said


def warned(lockstep: Any, start: str) -> list[str]:
    """What `check` warns of where the file says this."""
    file = lockstep.directory / "shop.yaml"
    file.write_text(re.sub("    start: .*", f"    start: {start}", file.read_text()))
    findings = lockstep("check", "shop.yaml").document["findings"]
    return [
        finding["what"]
        for finding in findings
        if (finding["subject"], finding["status"]) == ("source shop: start", "warn")
    ]
