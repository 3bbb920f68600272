"""Coverage: whether the staged history of a source table holds every row that the table has.

A history is whole from the place where the table was known to be empty: it was created in the log, truncated, or
seen to be empty; or from a full copy on. It is partial if rows existed before the first staged change, or if changes
were missed. Manifests carry changes of coverage, so that it is known from the stage alone.

    event                     what it makes of a table's coverage
    created, truncated        whole from there on
    seen empty                whole, where nothing is known or only earlier rows are missing; else, and where a
                              foreign key may have changed staged rows, as it was
    seen with rows            partial, where nothing is known
    created if absent         whole, where the table is known not to have existed; else as it was
    rows                      partial, where nothing is known
    unlogged, isolated,       partial: the staged files may also hold rows that the table has no more
    left out
    captured again, abandoned partial: changes from before that are missing, and will not come
    other rules               partial: what was staged before is not what the pipeline's rules say now; where more is
                              missing, as it was
    cascaded                  partial from there on: a foreign key may have changed rows without row events
    dropped                   as it was, and the table is known not to exist
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cdc_core.model.json_codec import Natural, TimeUs
from cdc_core.model.position import place_of


class How(StrEnum):
    """Why a history is whole, or what it lacks."""

    CREATED = "created"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    COPIED = "copied"
    """A full copy of the table is staged."""
    EXISTING = "existing"
    """Rows existed before the first staged change."""
    LEFT_OUT = "left out"
    """The pipeline did not capture the table for a while."""
    ISOLATED = "isolated"
    CAPTURED_AGAIN = "captured again"
    """The table was left out or isolated for a while, up to the place."""
    OTHER_RULES = "other rules"
    """Up to the place, rows were staged under other rules of the pipeline: other rows, columns, values or routes."""
    UNLOGGED = "unlogged"
    """Rows changed without row events."""
    ABANDONED = "abandoned"
    """The source's log was not read up to the place: an operator has given up what it had there."""

    @property
    def whole(self) -> bool:
        return self in _WHOLE

    @property
    def captured(self) -> bool:
        """Whether changes of the table are staged: what is missing is then in the past, and a copy can bring it."""
        return self not in (How.LEFT_OUT, How.ISOLATED)


_WHOLE = frozenset({How.CREATED, How.EMPTY, How.TRUNCATED, How.COPIED})


class Happened(StrEnum):
    """What a statement of the log did to a table, as far as it concerns coverage."""

    CREATED = "created"
    CREATED_IF_ABSENT = "created if absent"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    UNLOGGED = "unlogged"
    CASCADED = "cascaded"
    ROWS = "rows"


ANY_TABLE = ""
"""In a TableEvent: it may concern any table."""
EACH_TABLE = ".*"
"""After the name of a database, in a TableEvent: every table of it."""


@dataclass(frozen=True, slots=True)
class TableEvent:
    """table: `database.table`, `database.*` (EACH_TABLE), or ANY_TABLE.
    seq, ts_us: order key and commit time (µs UTC) of the transaction.

    place: where it is in the log, for people.
    """

    table: str
    what: Happened
    seq: Natural
    ts_us: TimeUs
    place: str


@dataclass(frozen=True, slots=True)
class TableCoverage:
    """seq: order key; whole as of any position after it, partial from it on. ts_us: the same as a time, µs UTC.

    rows: the server's estimate of the rows that are missing, None where it is not known.
    feeds: the logical tables that the table's rows go to.
    absent_seq: order key at which the table was known not to exist, 0 where it is not known.
    base_seq: of a copy, order key of the place where its reading began; else 0.
    appeared: whether a survey found the table, and an earlier one had not: it is new, or the pipeline's rules are.
    cascaded_seq: order key of the last transaction by which a foreign key may have changed rows of it, or of the place
    where a survey saw the table, if that is later; else 0.
    rules: of a copy, the pipeline's rules for its rows; of other rules, those from the place on (Capture.rules_of).
    """

    how: How
    seq: Natural
    ts_us: TimeUs
    place: str
    rows: Natural | None = None
    feeds: tuple[str, ...] = ()
    absent_seq: Natural = 0
    base_seq: Natural = 0
    appeared: bool = False
    cascaded_seq: Natural = 0
    rules: str = ""

    @property
    def needs_seq(self) -> int:
        """The order key from which on the history of a whole table must be staged; earlier changes are not needed."""
        return self.base_seq if self.how is How.COPIED else self.seq

    @property
    def cascaded(self) -> bool:
        """Whether a foreign key may have changed rows since the history is whole, or since all of it is missing."""
        return self.cascaded_seq >= max(self.needs_seq, 1)

    @property
    def whole(self) -> bool:
        return self.how.whole and not self.cascaded

    @property
    def due(self) -> bool:
        """Whether something is missing that a copy can bring."""
        return not self.whole and self.how.captured and not self.gone

    @property
    def latest_seq(self) -> int:
        """The order key of the latest event that it knows."""
        return max(self.seq, self.cascaded_seq)

    @property
    def found_later(self) -> bool:
        """Whether a later survey found the table, and all that is known of it is from there."""
        return self.how in (How.EXISTING, How.EMPTY) and self.appeared

    @property
    def gone(self) -> bool:
        """Whether the table is known not to exist any more."""
        return 0 < self.seq <= self.absent_seq


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A complete survey of a source's tables.

    seq: order key at which every captured table that existed was known; 0 before the first survey.
    captured: the pipeline's rules by then, as source.capture.captured.Capture.rules has them.
    """

    seq: Natural
    captured: str


NO_SURVEY = Surveyed(0, "")


def after(coverage: TableCoverage | None, event: TableEvent, *, surveyed_seq: int = 0) -> TableCoverage | None:
    """The coverage of a table after an event of the log; the docstring of this module has the rules.

    surveyed_seq: order key at which every captured table that existed was known; 0 where there is none.
    """
    absent_seq = surveyed_seq if coverage is None else coverage.absent_seq
    whole = None
    match event.what:
        case Happened.CREATED:
            whole = How.CREATED
        case Happened.TRUNCATED:
            whole = How.TRUNCATED
        # Where the table was seen, it was there already: only before that place the statement created it.
        case Happened.CREATED_IF_ABSENT if 0 < absent_seq <= event.seq and not (
            coverage is not None and coverage.found_later and event.seq > coverage.seq
        ):
            whole = How.CREATED
        case Happened.DROPPED if coverage is not None:
            return replace(coverage, absent_seq=event.seq)
        case Happened.UNLOGGED if coverage is None or coverage.how is not How.EXISTING:
            return TableCoverage(How.UNLOGGED, event.seq, event.ts_us, event.place)
        case Happened.UNLOGGED if coverage is not None:
            place = event.place
            return replace(coverage, how=How.UNLOGGED, seq=event.seq, ts_us=event.ts_us, place=place, absent_seq=0)
        case Happened.CASCADED if coverage is not None:
            if not coverage.how.captured or coverage.gone:
                return coverage
            # A survey sees a table before the log is read up to there: what it saw does not say that the rows which
            # were staged until then are still there.
            seq = max(event.seq, coverage.seq) if coverage.how in (How.EMPTY, How.EXISTING) else event.seq
            return replace(coverage, cascaded_seq=max(coverage.cascaded_seq, seq))
        case Happened.CASCADED:
            return TableCoverage(How.EXISTING, event.seq, event.ts_us, event.place, cascaded_seq=event.seq)
        case Happened.ROWS if coverage is None:
            return TableCoverage(How.EXISTING, event.seq, event.ts_us, event.place)
    return coverage if whole is None else TableCoverage(whole, event.seq, event.ts_us, event.place)


def settled(known: Mapping[str, TableCoverage], said: Mapping[str, TableCoverage]) -> dict[str, TableCoverage]:
    """The coverage of tables after a manifest has said something of them.

    An extractor that runs while a table is copied does not know of the copy. What it says of rows from before its
    capture, and of changes that were missed before the copy's place, is older than the copy, wherever it is in the
    chain; a copy says nothing of what happened after it, and nothing for rules under which it was not read. What
    foreign keys may have changed counts until a copy began after it.
    """
    found = dict(known)
    for table, coverage in said.items():
        before = known.get(table)
        outdated = before is not None and before.how is How.COPIED and _is_before(coverage, before)
        early = (
            before is not None
            and coverage.how is How.COPIED
            and before.seq > coverage.seq
            and before.how is not How.EXISTING
        )
        unlike = before is not None and coverage.how is How.COPIED and _under_other_rules(before, coverage)
        chosen = before if before is not None and (outdated or early or unlike) else coverage
        cascaded_seq = max(coverage.cascaded_seq, 0 if before is None else before.cascaded_seq)
        found[table] = replace(chosen, cascaded_seq=cascaded_seq)
    return found


def _is_before(coverage: TableCoverage, copy: TableCoverage) -> bool:
    missed = coverage.how is How.CAPTURED_AGAIN or (
        coverage.how is How.OTHER_RULES and not _under_other_rules(coverage, copy)
    )
    return coverage.how is How.EXISTING or (missed and coverage.seq <= copy.seq)


def _under_other_rules(coverage: TableCoverage, copy: TableCoverage) -> bool:
    return coverage.how is How.OTHER_RULES and coverage.rules != copy.rules


def lacks(table: str, source: str, coverage: TableCoverage | None) -> str:
    """A sentence on what the staged history of a source table lacks."""
    if coverage is None:
        return f"nothing says what {table} of source {source} held before its first staged change"
    count = "seen" if coverage.rows is None else f"~{coverage.rows:,} row" + ("s" if coverage.rows != 1 else "")
    since = coverage.place
    if coverage.how.whole and coverage.cascaded:
        since = place_of(coverage.cascaded_seq)
        return (
            f"rows of {table} (source {source}) may have changed without row events, by a foreign key, at {since} or "
            "before"
        )
    match coverage.how:
        case How.EXISTING:
            # `since` is where the rows were seen, which is after the place where capture began.
            return f"rows of {table} (source {source}) from before its capture are not captured ({count} at {since})"
        case How.LEFT_OUT:
            return f"{table} (source {source}) was not captured for a while, up to {since} or later"
        case How.ISOLATED:
            return f"{table} (source {source}) was isolated at {since}, and its changes were left out"
        case How.CAPTURED_AGAIN:
            return f"changes of {table} (source {source}) were left out, up to {since}"
        case How.OTHER_RULES:
            return f"rows of {table} (source {source}) were staged under other rules of the pipeline, up to {since}"
        case How.UNLOGGED:
            return f"rows of {table} (source {source}) changed without row events at {since}"
        case How.ABANDONED:
            return f"changes of {table} (source {source}) were given up with the log that came before {since}"
        case _:
            return f"{table} (source {source}) is complete only from {since} on"
