"""The problems that receivers were told of: each receiver is told once, and once more when it is solved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import delete, insert, select

from cdc_core.meta.meta_schema import told_problem as _told
from cdc_core.meta.repository import Repository, writes


class ToldProblems(Repository):
    """Receivers and problems have keys, which have no colon, and at most 63 characters together."""

    @writes
    def settle(
        self, receiver: str, present: Collection[str], new: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Makes what a receiver was told equal to what there is. present: keys of all problems; new: documents, by key,
        of those that it may be told now.

        Returns the keys that this call has to tell, and the documents, by key, of what it has to tell as solved. Of
        several processes at once, one gets each.
        """
        known = {
            key: row.document
            for row in self.execute(select(_told))
            for of, _, key in [row.problem.partition(":")]
            if of == receiver
        }
        begun = tuple(key for key in new if key not in known)
        for key in begun:
            self.execute(insert(_told).values(problem=f"{receiver}:{key}", document=new[key]))
        solved = {
            key: document
            for key, document in known.items()
            if key not in present and self.execute(delete(_told).where(_told.c.problem == f"{receiver}:{key}")).rowcount
        }
        return begun, solved

    @writes
    def not_told(self, receiver: str, key: str, solved: str | None) -> None:
        """Takes back what `settle` gave: the receiver did not take it. solved: the document of what is solved."""
        mine = _told.c.problem == f"{receiver}:{key}"
        if solved is None:
            self.execute(delete(_told).where(mine))
        elif self.execute(select(_told).where(mine)).one_or_none() is None:
            self.execute(insert(_told).values(problem=f"{receiver}:{key}", document=solved))

    @writes
    def keep_only(self, receivers: Collection[str]) -> None:
        """Forgets what others were told."""
        for problem in self.execute(select(_told.c.problem)).scalars().all():
            if problem.partition(":")[0] not in receivers:
                self.execute(delete(_told).where(_told.c.problem == problem))
