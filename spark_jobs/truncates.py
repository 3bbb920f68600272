"""Which TRUNCATEs of a run count, and whether they are allowed: one rule for both ways to merge.

`t` is a TRUNCATE that the source logged, or the beginning of a copy that takes the place of older rows
(cdc_core/snapshot/renewal.py), which is alone in a file of copied rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_core.errors import Refused
from cdc_core.model.run import FileToRead, PlannedFile
from cdc_core.model.version import Version, encode, origin_name
from cdc_core.stage.layout import parse_copied


@dataclass(frozen=True, slots=True, order=True)
class Truncate:
    """The last one of its kind among the changes of a source table in the run. count: of all of them."""

    source: str
    source_table: str
    seq: int
    row: int
    commit_ts_us: int
    renews: bool
    """It is the beginning of a copy that takes the place of older rows."""
    count: int

    @property
    def table(self) -> tuple[str, str]:
        return self.source, self.source_table

    @property
    def order(self) -> tuple[int, int]:
        return self.seq, self.row


@dataclass(frozen=True, slots=True)
class TruncateRule:
    """What a logical table does with them.

    on_truncate: as in config.TargetTable. names: of the source tables that feed it in the run. alone: no other table
    can. shared: its rows say their origins.
    """

    table: str
    run_id: str
    on_truncate: str
    names: frozenset[str]
    alone: bool
    shared: bool

    def last(self, truncates: Sequence[Truncate]) -> list[Truncate]:
        """Those that count, one for each source table: the policy for TRUNCATE decides about those after a copy that
        takes the place of older rows; earlier ones are part of what it replaces.

        Raises Refused (spark.truncate).
        """
        last: dict[tuple[str, str], Truncate] = {}
        for one in truncates:
            if one.renews:
                last[one.table] = max(one, last.get(one.table, one), key=lambda it: it.order)
        logged = [
            one for one in truncates if not one.renews and (one.table not in last or one.order > last[one.table].order)
        ]
        refused = logged if self.on_truncate == "stop" or (self.on_truncate == "apply" and not self.alone) else []
        if last and not self.alone and not self.shared:
            refused = [*refused, *last.values()]
        if refused:
            raise self._refused(refused)
        if self.on_truncate == "apply":
            for one in logged:
                last[one.table] = max(one, last.get(one.table, one), key=lambda it: it.order)
        return sorted(last.values())

    def _refused(self, refused: Sequence[Truncate]) -> Refused:
        others = f", whose rows may come from other tables than {' and '.join(sorted(self.names))} too"
        return Refused(
            f"The run has {sum(one.count for one in refused)} TRUNCATE of {self.table}{'' if self.alone else others}.",
            where=self.run_id,
            code="spark.truncate",
            remedy=f"set on_truncate of {self.table} in the target's tables: "
            + ("apply removes its older rows, ignore leaves them" if self.alone else "ignore leaves the rows as they "
            "are; then remove those of the emptied table by hand, and plan the run again"),
        )  # fmt: skip

    def origin(self, one: Truncate) -> str:
        return origin_name(*one.table) if self.shared else ""

    def version(self, one: Truncate) -> str:
        """In hex."""
        return encode(Version(one.commit_ts_us, one.seq, one.row, one.source, self.origin(one))).hex()


def may_have(file: PlannedFile | FileToRead, *, renews: bool) -> bool:
    """Whether a file may have a `t` of this kind."""
    # What begins a table again is alone in its file (cdc_core/snapshot/renewal.py).
    return renews == (parse_copied(file.path) is not None) and (not renews or file.rows == 1)
