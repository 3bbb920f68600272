"""Requirements: each is broken by exactly one fact, and refused by the function that `lockstep check` calls too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc_core.config import Source
from cdc_core.errors import Refused
from cdc_core.model.position import Checkpoint, Position
from cdc_core.source.host import source_server
from cdc_core.source.host.server_facts import Grants, Replica, ServerFacts, parse_grants
from cdc_core.source.wire.replica_identity import replica_host

SOURCE = Source(name="shop", connection="env:X", server_id=77)
GOOD = ServerFacts(
    version="9.7.4", flavor="mysql", identity="uuid", server_id=1, log_bin=True, log_engine="", binlog_format="ROW",
    row_image="FULL", row_metadata="FULL", checksum="CRC32", retention_s=0, gtid_mode="ON", logs_replicated=True,
    is_replica=False, filters=(), clock_us=1, grants=Grants(frozenset({"ALL PRIVILEGES"}), ("*.*",)), replicas=(),
)  # fmt: skip


def broken(facts: ServerFacts) -> list[str]:
    """Codes of all requirements that these facts break."""
    codes = []
    for _, requirement in source_server.PREFLIGHT:
        try:
            requirement(facts, SOURCE)
        except Refused as error:
            codes.append(error.code)
    return codes


def test_a_good_server_breaks_nothing_and_gets_no_advice() -> None:
    assert broken(GOOD) == []
    assert [advise(GOOD) for advise in source_server.ADVICE] == [None] * len(source_server.ADVICE)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"log_bin": False}, "connection.setting"),
        ({"log_engine": "innodb"}, "connection.setting"),
        ({"binlog_format": "MIXED"}, "connection.setting"),
        ({"filters": ("binlog-ignore-db=shop",)}, "connection.setting"),
        ({"is_replica": True, "logs_replicated": False}, "connection.setting"),
        ({"server_id": 77}, "source.server_id_taken"),
        ({"replicas": (Replica(77, "db2", 3306),)}, "source.server_id_taken"),
        ({"grants": Grants(frozenset({"REPLICATION SLAVE"}), ("shop.*",))}, "connection.grant"),
        ({"grants": Grants(frozenset({"REPLICATION CLIENT"}), ("shop.*",))}, "connection.grant"),
        ({"grants": Grants(frozenset({"REPLICATION CLIENT", "REPLICATION SLAVE"}), ())}, "connection.grant"),
    ],
)
def test_each_requirement_is_broken_by_its_fact_alone(change: dict[str, Any], code: str) -> None:
    assert broken(replace(GOOD, **change)) == [code]


@pytest.mark.parametrize(
    "change",
    [
        {"logs_replicated": False}, {"is_replica": None, "logs_replicated": False},
        {"replicas": (Replica(78, "db2", 3306),)},
        {"grants": Grants(frozenset({"BINLOG MONITOR", "REPLICATION SLAVE"}), ("shop.*",))},
    ],
)  # fmt: skip
def test_what_is_all_right_is_not_refused(change: dict[str, Any]) -> None:
    assert broken(replace(GOOD, **change)) == []


def test_our_own_replica_is_told_from_one_of_a_copied_pipeline_file_by_its_name() -> None:
    ours, theirs = (replica_host(pipeline, "shop", "f00d") for pipeline in ("shop", "copy"))
    known = replace(GOOD, replicas=(Replica(77, ours, 0),))
    assert broken(known.without_replica(ours)) == []
    assert broken(known) == broken(known.without_replica("")) == broken(known.without_replica(theirs))
    assert broken(known) == ["source.server_id_taken"]


def test_the_name_of_a_replica_fits_into_what_servers_keep_and_still_tells_two_apart() -> None:
    names = {replica_host("p" * 64, "s" * 64, identity) for identity in ("0" * 16, "1" * 16)}
    assert len(names) == 2
    assert all(len(name) <= 60 for name in names)


@pytest.mark.parametrize(
    "change",
    [
        {"row_metadata": "MINIMAL"}, {"retention_s": 3600}, {"checksum": "NONE"},
        {"row_image": "MINIMAL"}, {"row_image": "FULL_NODUP"},
    ],
)  # fmt: skip
def test_advice_is_given_for_what_is_not_refused(change: dict[str, Any]) -> None:
    assert [bool(advise(replace(GOOD, **change))) for advise in source_server.ADVICE].count(True) == 1


def test_grants_are_read_from_the_lines_of_show_grants() -> None:
    grants = parse_grants([
        "GRANT USAGE ON *.* TO `cdc`@`%`",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `cdc`@`%` REQUIRE SSL",
        "GRANT SELECT, INSERT (`a`, `b`) ON `shop`.* TO `cdc`@`%`",
        "GRANT SELECT ON `o``dd`.`t` TO `cdc`@`%`",
        "GRANT BACKUP_ADMIN ON *.* TO `cdc`@`%` WITH GRANT OPTION",
        "GRANT `reader`@`%` TO `cdc`@`%`",
        "GRANT EXECUTE ON PROCEDURE `shop`.`p` TO `cdc`@`%`",
    ])  # fmt: skip
    assert grants.has("REPLICATION SLAVE")
    assert grants.has("REPLICATION CLIENT")
    assert not grants.has("SELECT")
    assert grants.select_on == ("shop.*", "odd.t")
    assert parse_grants(["GRANT ALL PRIVILEGES ON *.* TO `root`@`%` WITH GRANT OPTION"]).has("ANYTHING")


def test_a_position_near_to_what_is_purged_next_is_told() -> None:
    hour_us = 3_600_000_000
    known = replace(GOOD, clock_us=100 * hour_us, retention_s=10 * 3600)
    files = [source_server.BinlogFile(f"binlog.00000{number}", 10) for number in (3, 4)]

    def near(file: str, age_h: int, of: str = "uuid", left: int = 2) -> source_server.Advice | None:
        stored = Checkpoint(Position(0, file, 4), server=of, watermark_us=(100 - age_h) * hour_us)
        return source_server.advise_position(known, files[:left], stored)

    assert near("binlog.000004", 5) is None
    assert "6.0 h old" in str(near("binlog.000004", 6))
    assert "the oldest of 2" in str(near("binlog.000003", 1))
    assert near("binlog.000003", 1, left=1) is None
    assert near("binlog.000003", 1, of="another") is None
