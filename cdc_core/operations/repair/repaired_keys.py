"""Which rows a repair is about: the keys in a verification's evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.readable import counted
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES
from cdc_core.operations.verify.canonical import BYTES_SHOWN, ERROR_SHOWN, key_text
from cdc_core.operations.verify.evidence import ROW_MODES
from cdc_core.operations.verify.shape import Shape

LOOKED_UP = (
    frozenset(INTEGER_BYTES) | TEXT_BASES | BINARY_BASES
    | {"decimal", "bit", "year", "float", "double", "date", "datetime", "timestamp", "time", "enum", "set"}
    | {"uuid", "inet4", "inet6"}
)  # fmt: skip
"""Types of keys that a condition finds by their canonical texts; the tests look each up on real servers."""


Key = Mapping[str, str | None]
"""The canonical texts of a row's key, by column, as evidence has them."""


def keys_in(
    document: Mapping[str, Any], path: str, *, tables: Collection[str] = (), ids: Collection[str] = ()
) -> dict[str, list[Key]]:
    """The keys of the findings in an evidence, by logical table.

    tables, ids: only these tables, only findings with these ids; none for all.
    Raises Refused (verify.no_evidence), UsageError (usage.unknown_name).
    """
    if document["mode"] not in ROW_MODES:
        raise Refused(
            f"A verification in the mode {document['mode']} compares no rows, so its evidence names none.",
            where=path,
            code="verify.no_evidence",
            remedy="run `lockstep verify` (--mode ordered), then repair what it finds",
        )
    named = {str(table["table"]) for table in document["tables"]}
    for table in tables:
        if table not in named:
            raise UsageError(
                f"The evidence does not cover the table {table!r}.",
                where=path,
                code="usage.unknown_name",
                remedy=f"verify the table first; the evidence has: {', '.join(sorted(named)) or '(none)'}",
            )
    keys: dict[str, list[Key]] = {}
    left = set(ids)
    for table in document["tables"]:
        for finding in table["findings"] if not tables or table["table"] in tables else []:
            if not ids or finding["id"] in ids:
                left.discard(finding["id"])
                keys.setdefault(str(table["table"]), []).append(finding["key"])
    if left:
        raise UsageError(
            f"The evidence has no finding {sorted(left)[0]!r}{' of these tables' if tables else ''}.",
            where=path,
            code="usage.unknown_name",
            remedy="give an id of the newest evidence (`lockstep verify PIPELINE --json` shows them), or name its "
            "file with --evidence",
        )
    return keys


_AGAIN = (
    "copy the table again: `lockstep snapshot PIPELINE TABLE`, with --source where there are several, then "
    "`lockstep run`, then `lockstep verify`"
)


def _copy_instead(where: str, what: str) -> Refused:
    return Refused(what, where=where, code="repair.copy_instead", remedy=_AGAIN)


def _has_error_value(shape: Shape, key: Key) -> bool:
    """Whether the key has the error value of an ENUM that has the label '' too, or bytes that are not text of their
    character set: no condition finds its row."""
    texts = {column.name for column in shape.key_columns if column.type.base in TEXT_BASES}
    return any(
        (value == ERROR_SHOWN and name.lower() in shape.errors)
        or (name in texts and value is not None and value.startswith(BYTES_SHOWN))
        for name, value in key.items()
    )


def texts_of(shape: Shape, keys: Sequence[Key]) -> list[str]:
    """The keys as texts of `row_texts`.

    Raises Refused (repair.copy_instead, verify.no_evidence).
    """
    if not shape.key:
        raise _copy_instead(shape.logical, f"{shape.logical} has no key, so single rows cannot be repaired.")
    for column in shape.key_columns:
        if column.type.base not in LOOKED_UP:
            raise _copy_instead(
                shape.logical,
                f"Rows of {shape.logical} cannot be looked up by its key column {column.name} of the type "
                f"{column.type}.",
            )
    if shape.masked & set(shape.key):
        raise _copy_instead(
            shape.logical, f"The key of {shape.logical} is masked, so its rows cannot be looked up in the source."
        )
    for key in keys:
        if set(key) != set(shape.key) or None in key.values():
            raise Refused(
                f"The findings of {shape.logical} name rows by {', '.join(key)}, but its key is now "
                f"{', '.join(shape.key)}.",
                where=shape.logical,
                code="verify.no_evidence",
                remedy="verify again, then repair what that finds",
            )
    unfound = sum(_has_error_value(shape, key) for key in keys)
    if unfound:
        raise _copy_instead(
            shape.logical,
            f"No condition finds {counted(unfound, 'finding')} of {shape.logical}: the keys have the error value of an "
            "ENUM, or bytes that are not text. The others can be repaired alone (--finding).",
        )
    return list(dict.fromkeys(key_text([key[name] for name in shape.key]) for key in keys))


def require_listed(document: Mapping[str, Any], path: str, tables: Sequence[str]) -> None:
    """Raises DataAtRisk (repair.limit) where a table has more differences than the evidence names."""
    for table in document["tables"]:
        differences = sum(table["differences"].values())
        if (not tables or table["table"] in tables) and differences > len(table["findings"]):
            raise DataAtRisk(
                f"{differences} rows of {table['table']} differ, and the evidence names only {len(table['findings'])}.",
                where=path,
                code="repair.limit",
                remedy="find out why so many differ; then copy the table again (`lockstep snapshot PIPELINE TABLE`), "
                "or repair chosen findings (--finding)",
            )
