"""Chooses the parts that the state of a table is read from. It leaves out parts that are older than a change `t`,
after which no older row of its source table counts (a TRUNCATE of the source, or a copy that replaces older rows). The
parts that are left may have one definition where the whole history has several that exclude each other.

So a copy of a table heals a lost or damaged file: the history from before the copy has a hole, and the state has none.

Pure functions. Keeps true: a part is left out only if all of its changes are older than a `t` that counts; if the
manifests do not say so for certain, the part stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc_core.model.batch import Manifest, Part
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.unify import StagedPart, definition_of

SourceTable = tuple[str, str]
"""A source, and the name of a table there."""


def needed_parts(
    parts: Sequence[StagedPart], manifests: Iterable[Manifest], table: str, as_of: AsOf | None
) -> list[StagedPart]:
    """Those of the parts of a logical table that its state needs, in the same order. manifests: those of the parts, and
    perhaps later ones."""
    # A copy is staged after the place of its `t`: until then the older rows are all that there is.
    emptied = emptied_before(manifests if as_of is None else as_of.cut(list(manifests)), table, as_of)
    return [part for part in parts if part.part.max_seq >= emptied.get((part.source, part.schema.name), 0)]


def emptied_before(manifests: Iterable[Manifest], table: str, as_of: AsOf | None = None) -> dict[SourceTable, int]:
    """For each source table, an order key that is not after its last `t` of the moment."""
    emptied: dict[SourceTable, int] = {}
    for manifest in manifests:
        for part in manifest.parts:
            if part.table == table and part.ops.get("t"):
                name = definition_of(manifest, part).name
                if as_of is None or _counts(manifest, part, name, as_of):
                    of = manifest.source, name
                    emptied[of] = max(part.min_seq, emptied.get(of, 0))
    return emptied


def _counts(manifest: Manifest, part: Part, name: str, as_of: AsOf) -> bool:
    """Whether every `t` of the part had happened by the moment, for certain."""
    if as_of.position is not None:
        return as_of.includes(part.max_seq, 0)
    # The time of a copy's `t` is that from which on its table is whole; a TRUNCATE may be late for its batch's window.
    coverage = manifest.coverage.get(name) if manifest.copied else None
    return coverage is not None and as_of.includes(part.max_seq, coverage.ts_us)
