"""The problems that people were told of: each is told once, and once more when it is solved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import delete, insert, select

from cdc_core.meta.meta_schema import told_problem as _told
from cdc_core.meta.repository import Repository, writes


class ToldProblems(Repository):
    @writes
    def settle(self, present: Collection[str], new: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """Makes what was told equal to what there is. present: keys of all problems; new: documents, by key, of those
        that may be told now.

        Returns the keys that this call has to tell, and the documents, by key, of what it has to tell as solved. Of
        several processes at once, one gets each.
        """
        known = {row.problem: row.document for row in self.execute(select(_told))}
        begun = tuple(key for key in new if key not in known)
        for key in begun:
            self.execute(insert(_told).values(problem=key, document=new[key]))
        solved = {
            key: document
            for key, document in known.items()
            if key not in present and self.execute(delete(_told).where(_told.c.problem == key)).rowcount
        }
        return begun, solved

    @writes
    def not_told(self, key: str, solved: str | None) -> None:
        """Takes back what `settle` gave, as nobody could be told. solved: the document of what is solved."""
        if solved is None:
            self.execute(delete(_told).where(_told.c.problem == key))
        elif self.execute(select(_told).where(_told.c.problem == key)).one_or_none() is None:
            self.execute(insert(_told).values(problem=key, document=solved))
