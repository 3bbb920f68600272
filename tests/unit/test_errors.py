"""What every error promises: its class decides exit code and retry, and it survives a process border."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_core.errors import (
    DataAtRisk,
    InternalError,
    LeaseHeld,
    LockstepError,
    Refused,
    RetryLater,
    RolledBack,
    UsageError,
    combined,
    defect,
    from_text,
    parts_of,
    severity,
    to_line,
)

CLASSES = {UsageError: 2, Refused: 3, DataAtRisk: 4, RetryLater: 75, InternalError: 70}


@pytest.mark.parametrize(("kind", "code"), CLASSES.items())
def test_each_class_has_its_exit_code_and_survives_pickling(kind: type[LockstepError], code: int) -> None:
    error = kind("It broke.", where="binlog.000001:4", code="a.b", remedy="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.exit_code == code
    assert (again.what, again.where, again.code, again.remedy) == ("It broke.", "binlog.000001:4", "a.b", "mend it")


def test_only_retry_later_is_worth_an_automatic_retry() -> None:
    assert [kind for kind in CLASSES if kind.retriable] == [RetryLater]
    assert not RolledBack.retriable


def test_an_error_that_a_caller_recovers_from_has_a_code_of_its_own_and_keeps_its_class_across_processes() -> None:
    error = LeaseHeld("Another extractor reads the source.", where="shop", remedy="wait")
    assert (error.code, error.exit_code) == ("lease.held", 75)
    assert type(from_text(to_line(error))) is LeaseHeld
    with pytest.raises(TypeError):
        RetryLater("It has no code.", remedy="wait")


def test_no_two_classes_share_a_name_or_an_exit_code() -> None:
    assert len({kind.exit_class for kind in CLASSES}) == len({kind.exit_code for kind in CLASSES}) == len(CLASSES)


def test_the_text_says_what_where_the_remedy_and_the_code() -> None:
    text = str(Refused("The account lacks a grant.", where="source shop", code="source.grant", remedy="grant it"))
    assert text == "The account lacks a grant. [at source shop] What to do: grant it (source.grant)"


def test_an_error_without_a_place_leaves_it_out() -> None:
    assert "[at" not in str(UsageError("No.", code="a.b", remedy="yes"))


def test_several_errors_are_one_of_the_gravest_class_on_one_line_and_can_be_told_apart_again() -> None:
    away = RetryLater("It is away.", where="server 2", code="connection.unreachable", remedy="try again")
    narrow = Refused("n is narrow.", where="shop.t", code="target.definition", remedy="ALTER TABLE t MODIFY n int")
    lost = Refused("t is missing.", where="shop.t", code="target.table", remedy="CREATE TABLE t (n int)")
    error = combined([away, combined([narrow, lost]), narrow])
    assert (severity(type(error)), error.code, parts_of(error)) == (Refused, "target.several", (away, narrow, lost))
    assert "\n" not in str(error)
    for part in (away, narrow, lost):
        assert part.what.rstrip(".") in error.what
        assert f"{part.remedy} ({part.code})" in error.remedy
    assert combined([narrow, narrow]) is narrow
    assert parts_of(narrow) == (narrow,)
    assert combined([narrow, Refused("b.", code="target.definition", remedy="r")]).code == "target.definition"
    shards = [Refused("t is filled.", where=f"shard {n}", code="target.existing", remedy="drop it") for n in (1, 2)]
    filled = combined(shards)
    assert str(filled) == "t is filled. [at shard 1, shard 2] What to do: drop it (target.existing)"
    assert parts_of(filled) == tuple(shards)
    for again in (from_text(to_line(error)), pickle.loads(pickle.dumps(error))):
        assert [str(part) for part in parts_of(again)] == [str(part) for part in parts_of(error)]


def test_a_defect_says_what_is_safe_and_what_a_report_needs() -> None:
    error = defect("A rule broke.", where="x", first="nothing was written", attach="the plan")
    assert type(error) is InternalError
    assert error.remedy == "nothing was written; report this as a defect in Lockstep, with the plan"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    [
        "LOCKSTEP-ERROR:5",
        'LOCKSTEP-ERROR:{"kind": "Refused"}',
        "LOCKSTEP-ERROR:" + "[" * 100_000,
        "a\nb",
        '"\\"',
        "[at x] What to do: y (z.z)",
    ]
)
ERRORS = st.builds(
    lambda kind, what, where, remedy: kind(what, where=where, code="a.b", remedy=remedy),
    st.sampled_from(list(CLASSES)),
    TEXTS,
    TEXTS,
    TEXTS,
)


@given(error=ERRORS, before=TEXTS, after=TEXTS)
@example(Refused("LOCKSTEP-ERROR:{}", code="a.b", remedy="x"), "", "")
def test_an_error_is_one_line_that_is_found_in_any_text(error: LockstepError, before: str, after: str) -> None:
    line = to_line(error)
    assert line.isascii()
    assert line.isprintable()
    for text in (f"{before}\n{line}\n{after}", f"x {line}{after}", f"Caused by: {line} at {after}"):
        again = from_text(text)
        assert (type(again), str(again)) == (type(error), str(error))


def test_of_several_errors_in_a_text_the_last_whole_one_is_found() -> None:
    first, second = (Refused(f"{n}.", code="a.b", remedy="x") for n in "12")
    text = f"{to_line(first)}\n{to_line(second)}"
    assert str(from_text(text)) == str(second)
    assert str(from_text(text[:-1])) == str(first)
    assert from_text(text[: len(to_line(first)) - 1]) is None


class Special(InternalError):
    """An error that only its own package knows."""


def test_an_error_of_a_class_that_the_reader_does_not_know_keeps_its_way_to_recover() -> None:
    again = from_text(to_line(Special("No.", code="a.b", remedy="x")).replace('"Special"', '"Unheard"'))
    assert type(again) is InternalError
    assert type(pickle.loads(pickle.dumps(Special("No.", code="a.b", remedy="x")))) is Special
