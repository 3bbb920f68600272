"""Files of ALTER TABLE statements: what is read from them, and what is refused with the line."""

from __future__ import annotations

import pytest

from cdc_core.errors import UsageError
from cdc_core.operations.ddl.fingerprint import _CHECK, _FOREIGN, _HEAD, _NEXT
from cdc_core.operations.ddl.script import parse


def test_statements_are_cut_where_a_semicolon_ends_one_and_keep_their_text() -> None:
    script = parse(
        "-- a file\n"
        "-- migrate:up\n"
        "ALTER TABLE `shop`.`or``ders`\n  ADD COLUMN a VARCHAR(9) COMMENT 'x; -- y', -- why\n  ADD INDEX i (a);;\n"
        "alter table flat DROP COLUMN b, ADD algorithm INT ; -- the end\n"
        "-- migrate:down\n"
        "ALTER TABLE flat ADD b INT",
        "file.sql",
    )
    first, second = script.up
    assert (first.logical, first.line) == ("shop.or`ders", 3)
    assert first.clauses == "ADD COLUMN a VARCHAR(9) COMMENT 'x; -- y', -- why\n  ADD INDEX i (a)"
    assert first.on("d`0", "t", "LOCK=NONE") == f"ALTER TABLE `d``0`.`t` LOCK=NONE, {first.clauses}"
    assert (second.logical, second.line) == ("flat", 6)
    assert (second.columns.dropped, second.columns.added) == (["b"], ["algorithm"])
    assert [statement.clauses for statement in script.down] == ["ADD b INT"]
    assert parse("ALTER TABLE a ADD b INT;", "f").up[0].line == 1
    assert parse("", "f").up == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("CREATE TABLE a (b INT)", "f:1"),
        ("ALTER TABLE a", "f:1"),
        ("ALTER TABLE IF EXISTS a ADD b INT", "f:1"),
        ("ALTER IGNORE TABLE a ADD b INT", "f:1"),
        ("ALTER TABLE a ADD b INT;\n\nDROP TABLE a", "f:3"),
        ("ALTER TABLE a RENAME TO b", "f:1"),
        ("ALTER TABLE a RENAME b", "f:1"),
        ("ALTER TABLE a DROP PRIMARY KEY", "f:1"),
        ("ALTER TABLE a ADD PRIMARY KEY (b)", "f:1"),
        ("ALTER TABLE a ADD CONSTRAINT c FOREIGN KEY (b) REFERENCES d (e)", "f:1"),
        ("ALTER TABLE a DROP PARTITION p", "f:1"),
        ("ALTER TABLE a TRUNCATE PARTITION p", "f:1"),
        ("ALTER TABLE a EXCHANGE PARTITION p WITH TABLE t", "f:1"),
        ("ALTER TABLE a CONVERT PARTITION p TO TABLE t", "f:1"),
        ("ALTER TABLE a CONVERT TABLE t TO PARTITION p VALUES LESS THAN (9)", "f:1"),
        ("ALTER TABLE a DROP INDEX `PRIMARY`", "f:1"),
        ("ALTER TABLE a ADD b INT, DROP KEY `primary`", "f:1"),
        ("ALTER TABLE a DISCARD TABLESPACE", "f:1"),
        ("ALTER TABLE a ADD b INT, ALGORITHM=COPY", "f:1"),
        ("ALTER TABLE a ADD b INT, ALGORITHM COPY", "f:1"),
        ("ALTER TABLE a ALGORITHM=INPLACE, ADD b INT", "f:1"),
        ("ALTER TABLE a MODIFY b BIGINT, LOCK=SHARED", "f:1"),
        ("ALTER TABLE a ADD b INT, lock = NONE", "f:1"),
        ("ALTER TABLE a ADD b INT /*!80000 , DROP c */", "f:1"),
        ("ALTER TABLE /*! x */ a ADD b INT", "f:1"),
        ("ALTER TABLE a DROP COLUMN _CDC_version", "f:1"),
        ("-- migrate:up\n-- migrate:up\n", "f:2"),
        ("ALTER TABLE a ADD b INT;\n-- migrate:up\n", "f:1"),
        ("-- migrate:up\n\nSELECT 1", "f:3"),
    ],
)
def test_what_is_not_a_change_for_all_shards_is_refused_with_its_line(text: str, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "f")
    assert (caught.value.code, caught.value.where) == ("ddl.script", where)


def test_what_belongs_to_one_table_alone_is_not_in_its_fingerprint() -> None:
    text = (
        "CREATE TABLE `a``b (` (\n  `id` int NOT NULL,\n  KEY `k` (`id`),\n"
        "  CONSTRAINT `a_ibfk_1` FOREIGN KEY (`id`) REFERENCES `p` (`id`) ON DELETE CASCADE,\n"
        "  CONSTRAINT `a_chk_1` CHECK ((`id` > 1))\n"
        ") ENGINE=InnoDB AUTO_INCREMENT=17 DEFAULT CHARSET=utf8mb4 COMMENT=' AUTO_INCREMENT=3'"
    )
    text = _CHECK.sub(r"\1CHECK ", _NEXT.sub(r"\1", _HEAD.sub("CREATE TABLE (", text)))
    assert _FOREIGN.sub("", text) == (
        "CREATE TABLE (\n  `id` int NOT NULL,\n  KEY `k` (`id`),\n  CHECK ((`id` > 1))\n"
        ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT=' AUTO_INCREMENT=3'"
    )
