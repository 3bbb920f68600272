"""Paths of the stage: readable, unambiguous, and safe for every file system that reads them."""

from __future__ import annotations

from urllib.parse import unquote

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
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("k=v", "k%3Dv"),
        ("sp ace", "sp%20ace"),
        ("tilde~", "tilde%7E"),
        ("😀", "%F0%9F%98%80"),
        ("a%2Fb", "a%252Fb"),
        ("[x]*?{y}", "%5Bx%5D%2A%3F%7By%7D"),
    ],
)
def test_a_name_is_percent_encoded_and_reads_back(name, text):
    assert segment(name) == text
    assert unquote(segment(name)) == name


@given(st.text(min_size=1, max_size=128), st.text(min_size=1, max_size=128))
def test_different_names_never_share_a_segment_and_each_fits_a_file_system(one, other):
    assert (segment(one) == segment(other)) == (one == other)
    assert segment(one).isascii()
    assert len(segment(one)) <= 200
    assert "/" not in segment(one)


def test_a_long_name_keeps_its_beginning_and_ends_in_a_hash():
    one, other = segment("表" * 64 + ".a"), segment("表" * 64 + ".b")
    assert one != other
    assert one.startswith("%E8%A1%A8")
    assert len(one) <= 200
    assert one.rpartition("~")[0].count("%") * 3 == len(one.rpartition("~")[0])


def test_a_part_lies_under_its_table_and_window():
    path = part_path("shop.orders", HOUR_US, NAME)
    assert path == "changes/table=shop.orders/window=20261121T040000Z/shop-0000000012884902019-7-0003.parquet"
    assert path.startswith(table_prefix("shop.orders"))


@pytest.mark.parametrize("table", ["shop.orders", "a/b=c%.😀", "x" * 500])
def test_the_writer_of_a_part_is_read_back_from_its_path(table):
    assert parse_part(part_path(table, HOUR_US, NAME)) == NAME


@pytest.mark.parametrize("path", ["changes/table=x/window=y/readme.txt", "changes/x.parquet", "manifests/shop/1.json"])
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
