"""Paths of the stage: readable, unambiguous, and safe for every file system that reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.model.batch import Manifest
from cdc_core.model.paths import segment
from cdc_core.model.position import Checkpoint, Position
from cdc_core.stage.layout import PartName, manifest_path, parse_part, part_path, table_prefix

HOUR_US = 1_795_233_600_000_000  # 2026-11-21T04:00:00Z
NAME = PartName("shop", 12884902019, 7, 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop.orders", "shop.orders"),
        ("shop.my-table_2", "shop.my-table_2"),
        ("a/b", "a@002fb"),
        ("100%", "100@0025"),
        ("k=v", "k@003dv"),
        ("sp ace", "sp@0020ace"),
        ("tilde~", "tilde@007e"),
        ("a@002fb", "a@0040002fb"),
        ("ж", "@0436"),
        ("😀", "@d83d@de00"),
        ("[x]*", "@005bx@005d@002a"),
        ("\ud800", "@d800"),
        ("..", "@002e@002e"),
    ],
)
def test_a_name_is_escaped_as_mysql_escapes_the_names_of_files(name, text):
    assert segment(name) == text


ODD = st.text(st.sampled_from("a.~@0042f\ud83d\ude00😀%/é") | st.characters(), min_size=1, max_size=128)


@given(ODD, ODD)
def test_different_names_never_share_a_segment_and_each_fits_a_file_system(one, other):
    # A surrogate pair and the character it stands for are one text in UTF-16, and so everywhere but in Python.
    same = one.encode("utf-16", "surrogatepass") == other.encode("utf-16", "surrogatepass")
    assert (segment(one) == segment(other)) == same
    assert re.fullmatch(r"[A-Za-z0-9_.@~-]+", segment(one))
    assert segment(one) not in (".", "..")
    assert len(segment(one)) <= 200
    assert "/" not in segment(one)


def test_a_long_name_keeps_its_beginning_and_ends_in_a_hash():
    one, other = segment("表" * 64 + ".a"), segment("表" * 64 + ".b")
    assert one != other
    assert one.startswith("@8868")
    assert len(one) <= 200
    assert one.rpartition("~")[0].count("@") * 5 == len(one.rpartition("~")[0])


def test_a_part_lies_under_its_table_and_the_date_of_its_window():
    path = part_path("shop.orders", HOUR_US, NAME)
    assert path == (
        "changes/cdc_table=shop.orders/cdc_date=2026-11-21/20261121T040000Z-shop-0000000012884902019-7-0003.parquet"
    )
    assert path.startswith(table_prefix("shop.orders"))


@pytest.mark.parametrize("table", ["shop.orders", "a/b=c%.😀", "x" * 500])
def test_the_writer_of_a_part_is_read_back_from_its_path(table):
    assert parse_part(part_path(table, HOUR_US, NAME)) == NAME


PART = part_path("t", HOUR_US, NAME)


@pytest.mark.parametrize(
    "path",
    [
        "changes/cdc_table=x/cdc_date=y/readme.txt",
        "changes/x.parquet",
        "manifests/shop/1.json",
        "",
        f"/{PART}",
        f"../{PART}",
        f"{PART}\n",
        PART.replace("cdc_table=t", "cdc_table="),
        PART.replace("cdc_table=t", "cdc_table=t/.."),
        PART.replace("2026-11-21/", "2026-11-22/"),
        PART.replace("0003", "9" * 5000),
        PART.replace("0000000012884902019", "٠" * 19),
        "manifests/shop/" + PART,
    ],
)
def test_other_files_are_no_parts(path):
    assert parse_part(path) is None


def test_parts_of_a_source_sort_in_stream_order():
    seqs = [4, 99, 1 << 33, (1 << 53) + 5]
    paths = [part_path("t", HOUR_US, PartName("s", seq, 1, 0)) for seq in seqs]
    assert paths == sorted(paths)


def test_a_manifest_is_named_by_the_position_where_its_batch_begins():
    begin = Position(1, "binlog.000042", 8_000_000_123)
    assert manifest_path("shop", begin) == "manifests/shop/0001-0000042-8000000123.json"
    end = Checkpoint(Position(1, "binlog.000043", 4))
    manifest = Manifest("p", "shop", 1, Checkpoint(begin), end, 0, 1, (), 0, 0, 0)
    assert manifest.path == manifest_path("shop", begin)
