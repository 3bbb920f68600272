"""Whether the staged history of each source table has every row."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, select, update

from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Lease, SourceCoverage
from cdc_core.meta.meta_schema import ack_position as _ack
from cdc_core.meta.meta_schema import table_coverage as _coverage
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.model.coverage import NO_SURVEY, Surveyed, TableCoverage, settled
from cdc_core.model.json_codec import parsed, text_of


class Coverages(Repository):
    @reads
    def find(self, source: str) -> SourceCoverage:
        """Whether the source's tables are staged with every row."""
        mine = select(_coverage).where(_coverage.c.source == source).order_by(_coverage.c.source_table)
        rows = self.execute(mine).all()
        coverages = {row.source_table: parsed(TableCoverage, row.coverage) for row in rows}
        survey = select(_ack.c.surveyed_seq, _ack.c.surveyed_captured).where(_ack.c.source == source)
        row = self.execute(survey).one_or_none()
        surveyed = NO_SURVEY if row is None else Surveyed(row.surveyed_seq, row.surveyed_captured or "")
        return SourceCoverage(
            coverages, frozenset(record.source_table for record in rows if not record.staged), surveyed
        )

    @writes
    def keep(self, lease: Lease, covered: Mapping[str, TableCoverage], surveyed: Surveyed) -> None:
        """Keep what was seen of tables until a manifest says it. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        self.cover(lease.source, covered, surveyed, staged=False)

    def cover(
        self,
        source: str,
        covered: Mapping[str, TableCoverage],
        surveyed: Surveyed,
        *,
        staged: bool = True,
        settling: bool = True,
    ) -> None:
        """staged: a manifest says so. settling: meta may know it better (model.coverage)."""
        coverages = self.find(source).tables if settling and covered else {}
        for table, said in covered.items():
            coverage = settled(coverages, {table: said})[table]
            if coverage == coverages.get(table) and coverage != said:
                continue
            mine = (_coverage.c.source == source) & (_coverage.c.source_table == table)
            self.execute(delete(_coverage).where(mine))
            text = text_of(coverage)
            self.execute(insert(_coverage).values(source=source, source_table=table, coverage=text, staged=staged))
        if surveyed.captured:
            newer = (_ack.c.source == source) & (_ack.c.surveyed_seq <= surveyed.seq)
            values = {"surveyed_seq": surveyed.seq, "surveyed_captured": surveyed.captured}
            self.execute(update(_ack).where(newer).values(values))
