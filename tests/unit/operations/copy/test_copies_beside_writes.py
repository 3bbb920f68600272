"""Whatever happens between the steps of a copy: a table that the stage says is whole has the source's rows, and so has
a target that has taken all that is staged."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.operations.copy.copy_keys import INT, SHAPES, TEXT_SHAPES
from tests.unit.operations.copy.copy_model import live

pytestmark = pytest.mark.slow
BEFORE = st.lists(st.integers(0, 99), max_size=2)
STEPS = st.lists(st.integers(0, 15), min_size=2, max_size=8)
EVENTS = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 3199)), min_size=1, max_size=40)
FLAVORS = pytest.mark.parametrize("flavor", ["mysql", "mariadb", "locks"])


@FLAVORS
@settings(max_examples=6)
@example([], [0, 5, 3, 9, 5, 10], [(60, 3), (4, 1), (6, 24), (3, 2)])  # rows are looked up beside writes
@example([], [0, 5, 3], [(34, 136)])  # rows change unlogged between two chunks
@example([], [0, 5, 3, 0, 5, 3], [(78, 102), (0, 13)])  # a row above the last key before the first chunk
@example([], [0, 0, 10], [(72, 124)])  # a row is written between the view in which it is looked up and `high`
@example([], [0, 5, 3, 5, 11, 5, 12], [(60, 3), (4, 1), (6, 24), (3, 2), (30, 4), (9, 19)])  # old changes are looked up
@example([], [0, 5, 3], [(7, 1081), (15, 1153), (1, 1729), (6, 1837), (1, 507), (0, 771)])  # XA: staged before visible
@example([], [14, 1, 9], [(14, 345), (5, 407), (32, 219), (22, 3157)])  # a purge after the read of a looked-up row
@example([], [0, 5, 3, 5, 3], [(1, 1783), (2, 440), (19, 2874)])  # another server takes over within a copy
@example([], [0, 5, 14, 15, 0, 5, 3], [(1, 726), (39, 19), (3, 703), (1, 1429), (8, 2681)])  # a purge within a copy
@example([93], [3, 1], [(11, 3050)])  # the server dies while it is asked what its engine shows
@given(before=BEFORE, steps=STEPS, events=EVENTS)
def test_a_copy_beside_anything_ends_with_the_rows_of_the_source(
    flavor: str, before: list[int], steps: list[int], events: list[tuple[int, int]]
) -> None:
    live(flavor, INT, before, steps, events)


@FLAVORS
@settings(max_examples=4)
@example("padded text", [], [0, 5, 3, 9, 5, 10, 13], [(60, 3), (4, 1), (6, 24), (3, 2)])  # looked up by other spellings
@given(shape=st.sampled_from(sorted(TEXT_SHAPES)), before=BEFORE, steps=STEPS, events=EVENTS)
def test_a_copy_of_rows_whose_keys_are_texts_ends_with_the_rows_of_the_source(
    flavor: str, shape: str, before: list[int], steps: list[int], events: list[tuple[int, int]]
) -> None:
    live(flavor, SHAPES[shape], before, steps, events)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@FLAVORS
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=400)
@given(before=BEFORE, steps=STEPS, events=EVENTS)
def test_a_copy_beside_anything_at_all_ends_with_the_rows_of_the_source(
    flavor: str, shape: str, before: list[int], steps: list[int], events: list[tuple[int, int]]
) -> None:
    live(flavor, SHAPES[shape], before, steps, events)
