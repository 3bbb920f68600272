"""Which logical tables are staged with every row, as the manifests and the horizon of each source say it.

Keeps true: a state is given as complete only if every source table that feeds it is known to be whole as of the
requested moment; a table of which nothing is known is partial.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce

from cdc_core.errors import Refused
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import TableCoverage, lacks, settled
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.horizon import Horizon, read
from cdc_core.stage.objects import ObjectStore


def coverage_of(store: ObjectStore, source: str, manifests: Iterable[Manifest]) -> dict[str, TableCoverage]:
    """The coverage of each source table as of the end of the manifests, those of one source in stream order."""
    horizon = read(store, source)
    return settled_coverage({} if horizon is None else horizon.coverage, manifests)


def settled_coverage(known: Mapping[str, TableCoverage], manifests: Iterable[Manifest]) -> dict[str, TableCoverage]:
    """What was known of source tables, and what manifests have said since."""
    return reduce(lambda found, manifest: settled(found, manifest.coverage), manifests, dict(known))


def missing_of(
    store: ObjectStore, manifests: Sequence[Manifest], tables: Iterable[str], as_of: AsOf | None = None
) -> dict[str, list[str]]:
    """What the states of logical tables lack, in words; no entry for tables that are whole.

    manifests: of one or more sources, each source's in stream order. Those after the moment count for a table of which
    nothing was known by then: they say which source tables feed it.
    """
    every = _by_source(manifests)
    by_then = every if as_of is None else _by_source(as_of.cut(manifests))
    covered = {source: coverage_of(store, source, chain) for source, chain in by_then.items()}
    feeding = {source: feeding_tables(chain, covered[source]) for source, chain in by_then.items()}
    known = {table for of_source in feeding.values() for table in of_source}
    found: dict[str, list[str]] = {table: [] for table in tables}
    for source, chain in by_then.items():
        for table, feeds in feeding[source].items():
            if table in found:
                found[table] += lacking(table, feeds, source, covered[source], chain[-1].end.position.seq, as_of)
        for table, line in _repeated(chain, covered[source]):
            if table in found and line not in found[table]:
                found[table].append(line)
    if as_of is not None:
        for source, chain in every.items():
            later = coverage_of(store, source, chain)
            for table, feeds in feeding_tables(chain, later).items():
                if table in found and (source not in by_then or table not in known):
                    found[table] += [
                        lacks(feed, source, None)
                        for feed in sorted(feeds)
                        if not _was_absent(later.get(feed), by_then.get(source, []))
                    ]
    return {table: lines for table, lines in found.items() if lines}


def lacking(
    table: str,
    feeds: Collection[str],
    source: str,
    covered: Mapping[str, TableCoverage],
    end_seq: int,
    as_of: AsOf | None = None,
) -> list[str]:
    """What the state of a logical table lacks of one source, in words.

    feeds: the source tables whose rows go to it. covered: their coverage as of the order key where the reading ends.
    """
    found = [
        lacks(feed, source, covered.get(feed))
        for feed in sorted(feeds)
        if not _whole(covered.get(feed), end_seq, as_of)
    ]
    return found + [
        f"{feed} (source {source}) is routed elsewhere now"
        for feed in sorted(feeds)
        if (coverage := covered.get(feed)) is not None and table not in (coverage.feeds or (table,))
    ]


def purged_of(
    store: ObjectStore, manifests: Sequence[Manifest], tables: Iterable[str], as_of: AsOf | None = None
) -> dict[str, str]:
    """What the states of logical tables lack because it was purged, in words; no entry for tables that lack nothing.

    History from before a table was empty, or was copied, is not needed: what it says is in the rows since.
    """
    by_then = _by_source(manifests if as_of is None else as_of.cut(manifests))
    asked, found = tuple(tables), dict[str, str]()
    for source in _by_source(manifests):
        horizon = read(store, source)
        if horizon is None:
            continue
        chain = by_then.get(source, [])
        covered = coverage_of(store, source, chain)
        feeding = feeding_tables(chain, covered)
        for table in asked:
            feeds = feeding.get(table)
            purged = horizon.tables.get(table)
            if purged and not (feeds and all(_needs_no_purged(covered.get(feed), horizon) for feed in feeds)):
                found.setdefault(
                    table,
                    f"{purged} changes of {table} before {horizon} of source {source} were purged: rows that have not "
                    "changed since would be missing",
                )
    return found


def _needs_no_purged(coverage: TableCoverage | None, horizon: Horizon) -> bool:
    return coverage is not None and coverage.whole and coverage.needs_seq >= horizon.position.seq


def require_unpurged(store: ObjectStore, manifests: Sequence[Manifest], table: str, as_of: AsOf | None = None) -> None:
    """Raises Refused (stage.partial) if changes were purged without which the state of the table cannot be read."""
    for lacking in purged_of(store, manifests, [table], as_of).values():
        raise Refused(
            lacking,
            where=table,
            code="stage.partial",
            remedy="read the table at a target, copy it (`lockstep snapshot`), or read only what changed since the "
            "horizon (`stage export --since-horizon`, or the view of its changes)",
        )


def _was_absent(later: TableCoverage | None, by_then: Sequence[Manifest]) -> bool:
    """Whether a table of which nothing was known by then is known not to have existed: what is known later says so.

    The last batch of `by_then` begins before the moment.
    """
    return later is not None and bool(by_then) and 0 < later.absent_seq <= by_then[-1].begin.position.seq


def _by_source(manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    by_source: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        by_source[manifest.source].append(manifest)
    return by_source


def feeding_tables(chain: Iterable[Manifest], covered: Mapping[str, TableCoverage]) -> dict[str, set[str]]:
    """The source tables of each logical table: those whose rows were staged for it, and those routed to it."""
    feeding: dict[str, set[str]] = defaultdict(set)
    for table, coverage in covered.items():
        for logical in coverage.feeds:
            feeding[logical].add(table)
    for manifest in chain:
        for part in manifest.parts:
            feeding[part.table].add(manifest.schemas[part.schema_id].name)
    return feeding


def _repeated(chain: Sequence[Manifest], covered: Mapping[str, TableCoverage]) -> Iterator[tuple[str, str]]:
    """Logical tables with changes that may be staged twice, of rows without a key by which to find the repeats; and
    what to say of them. What is older than the last copy of a table does not count."""
    bridge: Manifest | None = None
    for manifest in chain:
        bridge = manifest if manifest.again_until else bridge
        if bridge is None or manifest.copied or not bridge.may_repeat(manifest.begin.position):
            continue
        for part in manifest.parts:
            schema = manifest.schemas[part.schema_id]
            coverage = covered.get(schema.name)
            if not schema.key and not (coverage is not None and coverage.whole and coverage.seq >= part.max_seq):
                where = f"{bridge.source} continued on another server at {bridge.end.position}"
                yield part.table, f"changes of {schema.name}, which has no key, may be staged twice: {where}"


def _whole(coverage: TableCoverage | None, end_seq: int, as_of: AsOf | None) -> bool:
    if coverage is None or not coverage.whole or coverage.seq >= end_seq:
        return False
    if as_of is None:
        return True
    if as_of.position is not None:
        return coverage.seq < as_of.position.seq
    return as_of.time_us is not None and coverage.ts_us <= as_of.time_us


def require_covered(store: ObjectStore, manifests: Sequence[Manifest], table: str, as_of: AsOf | None = None) -> None:
    """Raises Refused (stage.partial) for a table of which rows are missing."""
    for lines in missing_of(store, manifests, [table], as_of).values():
        raise Refused(
            f"{table} is partial: {'; '.join(lines)}.",
            where=table,
            code="stage.partial",
            remedy=f"read its changes (the view {table}_changes), or accept the rows that are there with --partial; "
            "`lockstep snapshot` copies what is missing",
        )
