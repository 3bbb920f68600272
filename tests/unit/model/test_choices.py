"""A choice among the names of a pipeline file."""

from __future__ import annotations

import pytest

from cdc_core.errors import UsageError
from cdc_core.model.choices import choose


def test_names_are_all_by_default_and_keep_the_order_of_the_file() -> None:
    assert choose(("a", "b"), None, "target", "--target") == ["a", "b"]
    assert choose(("a", "b", "c"), ["b", "a", "b"], "target", "--target") == ["a", "b"]


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no target 'lkae'") as caught:
        choose(("shards", "lake"), ["lkae"], "target", "--target")
    error = caught.value
    assert (error.code, error.where) == ("usage.unknown_name", "--target")
    assert error.remedy == "did you mean 'lake'? choose one of: shards, lake"
