"""What a cutover works with, and the tables that it switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_core import config
from cdc_core.config import MysqlTarget, Pipeline
from cdc_core.meta import Meta
from cdc_core.model.position import Position
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.cutover.proof import Prover, reference_of
from cdc_core.operations.cutover.readiness import TablePair, places_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.targets.bookkeeping.gates import Places
from cdc_core.targets.reading.sharding import shard_tables


@dataclass(frozen=True, slots=True)
class Disturbed:
    """why: for people; "" if nothing is known to speak for it. seen: up to where, by source; None: the log is not read,
    or cannot be."""

    why: str
    seen: Mapping[str, Position] | None


@dataclass(frozen=True, slots=True)
class Written:
    """Changes of tables. rows: how many, by logical table. named: the keys of some, for people."""

    rows: Mapping[str, int]
    named: str


class WayBack:
    """The pipeline in the other direction. One that has made nothing, and of whose tables nobody knows anything, unless
    it says otherwise."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    def check(self) -> None:
        """Raises Refused (cutover.no_way_back, cutover.way_back_differs)."""

    def disturbed(self, after: Mapping[str, Position] | None = None) -> Disturbed:
        """Whether rows of the targets have changed without anybody's log of the sources saying so. A full verification
        from before says nothing then.

        after: where an earlier call has stopped; None: since the cutover by which the application came here. Raises
        what reading the log raises if it is given.
        """
        return Disturbed("", None)

    def written(self, after: Mapping[str, Position]) -> Written:
        """Changes that the log of the targets' tables has after these places, whoever has made them. Raises what
        reading the log raises."""
        return Written({}, "")

    def preview(self) -> Pipeline:
        """As it is, or as `arm` would make it now."""
        raise NotImplementedError

    def arm(self, token: str) -> Mapping[str, str]:
        """From now on it reads what is written to the targets: by source, from where on. Raises as `check`."""
        return {}

    def armed(self, starts: Mapping[str, str]) -> Pipeline:
        """What `arm` has made, made again if it is gone. Raises as `check`."""
        return self.preview()

    def keep_out(self) -> None:
        """From now on no run of it writes to the tables that the application leaves, whoever starts one, until it is
        let in (target.fence.admit). Safe to repeat. Raises as raise_fences."""

    def disarm(self, token: str) -> str:
        """Takes back what `arm` has made with this token, if nobody has used it. Safe to repeat. Says what it leaves;
        "" for nothing. Raises as `keep_out`."""
        return ""


def pair_of(pipeline: str, other: str) -> str:
    """Names the cutovers between two pipelines, in both directions. Fences have it as their owner."""
    return min(pipeline, other)


@dataclass(frozen=True, slots=True)
class CutoverWork:
    """What a cutover works with. spark: for the runs that it makes. jobs: by target, what its rows are compared with.
    back: it leads an application back."""

    opened: OpenPipeline
    spark: Spark
    targets: tuple[MysqlTarget, ...]
    jobs: Mapping[str, VerifyJob]
    way_back: WayBack
    back: bool = False

    @property
    def pipeline(self) -> Pipeline:
        return self.opened.pipeline

    @property
    def meta(self) -> Meta:
        return self.opened.meta

    @property
    def pair(self) -> str:
        return pair_of(self.pipeline.pipeline, self.way_back.name)

    @property
    def options(self) -> config.CutoverOptions:
        return self.pipeline.cutover


@dataclass(frozen=True, slots=True)
class Tables:
    """What is switched. pairs: of logical tables. sources, targets: physical tables, by server. logical: names."""

    sources: Places
    targets: Places
    logical: tuple[str, ...]
    pairs: tuple[TablePair, ...] = ()


def tables_of(work: CutoverWork, provers: Sequence[Prover]) -> Tables:
    pairs = []
    for target, prover in zip(work.targets, provers, strict=True):
        for name, feeding in prover.feeding.items():
            old = [(reference_of(work.pipeline, source), schema.database, schema.table) for source, schema in feeding]
            new = [(target.connections[at.connection], at.database, at.table) for at in shard_tables(target, name)]
            pairs.append(TablePair(name, tuple(old), tuple(new)))
    return Tables(
        _unique(places_of(place for pair in pairs for place in pair.old)),
        _unique(places_of(place for pair in pairs for place in pair.new)),
        tuple(dict.fromkeys(pair.logical for pair in pairs)),
        tuple(pairs),
    )


def _unique(places: Mapping[str, Sequence[tuple[str, str]]]) -> Places:
    return {reference: tuple(sorted(set(tables))) for reference, tables in places.items()}


def noted(tables: Tables) -> dict[str, Any]:
    return {
        "sources": {name: [list(place) for place in places] for name, places in tables.sources.items()},
        "targets": {name: [list(place) for place in places] for name, places in tables.targets.items()},
        "logical": list(tables.logical),
    }


def read(noted: Mapping[str, Any]) -> Tables:
    def places(found: Mapping[str, Any]) -> Places:
        return {name: tuple((str(database), str(table)) for database, table in some) for name, some in found.items()}

    return Tables(places(noted["sources"]), places(noted["targets"]), tuple(noted["logical"]))
