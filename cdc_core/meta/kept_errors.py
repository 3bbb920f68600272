"""What meta keeps of errors in words, wherever it is, so that values can be taken out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Table, or_, select, update

from cdc_core.meta import meta_schema
from cdc_core.meta.repository import Repository, reads, writes

_DOCUMENT, _SAID = "document", ("what", "where", "remedy")
"""The document of a problem that people were told of is JSON, and these of its values are words."""
_PLACES: Mapping[Table, tuple[str, ...]] = {
    meta_schema.failure: ("what", "place", "remedy"),
    meta_schema.told_problem: (_DOCUMENT,),
    **dict.fromkeys((meta_schema.run, meta_schema.consume_record, meta_schema.cutover), ("last_error",)),
}

Change = Callable[[str], str]


class KeptErrors(Repository):
    @reads
    def count(self, change: Change) -> int:
        """How many would be changed."""
        return sum(1 for _ in self._changed(change))

    @writes
    def rewrite(self, change: Change) -> None:
        for table, row, texts in list(self._changed(change)):
            mine = (column == row[column.name] for column in table.primary_key)
            self.execute(update(table).where(*mine).values(texts))

    def _changed(self, change: Change) -> Iterator[tuple[Table, Mapping[str, Any], dict[str, str]]]:
        for table, names in _PLACES.items():
            said = or_(*(table.c[name].is_not(None) for name in names))
            mine = select(*table.primary_key, *(table.c[name] for name in names)).where(
                table.c.pipeline == self.pipeline, said
            )
            for row in self.execute(mine).mappings():
                texts = {name: _rewritten(name, row[name], change) for name in names if row[name] is not None}
                if any(row[name] != text for name, text in texts.items()):
                    yield table, dict(row), texts


def _rewritten(name: str, text: str, change: Change) -> str:
    if name != _DOCUMENT:
        return change(text)
    document = json.loads(text)
    new = {key: change(value) if key in _SAID else value for key, value in document.items()}
    return text if new == document else json.dumps(new, ensure_ascii=False)
