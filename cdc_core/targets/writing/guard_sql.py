"""The guard in SQL: the comparisons of model/version.py as expressions for the target's server.

Twins of the Python functions: the tests compare them on real servers.
"""

from __future__ import annotations

from cdc_core.model.version import ORIGIN_BYTES, SHORTEST_WITH_ORIGIN, TAKEN_OVER
from cdc_core.mysql.connections import bytes_literal


def other_origin_sql(a: str, b: str) -> str:
    """version.other_origin as a SQL expression; never null. `a` must not be null."""
    said = f"{_says_origin(a)} AND {_says_origin(b)}"
    return f"COALESCE({said} AND RIGHT({a}, {ORIGIN_BYTES}) <> RIGHT({b}, {ORIGIN_BYTES}), FALSE)"


def origin_is_sql(version: str, origin: bytes | None = None) -> str:
    """Whether a version says its origin, or says this one, as a SQL expression; never null."""
    same = "" if origin is None else f" AND RIGHT({version}, {ORIGIN_BYTES}) = {bytes_literal(origin)}"
    return f"COALESCE({_says_origin(version)}{same}, FALSE)"


def _says_origin(version: str) -> str:
    return (
        f"SUBSTRING({version}, {-ORIGIN_BYTES - 1}, 1) = X'00' AND LENGTH({version}) >= {SHORTEST_WITH_ORIGIN} "
        f"AND SUBSTRING({version}, 1, {len(TAKEN_OVER)}) <> {bytes_literal(TAKEN_OVER)}"
    )


def newer_or_equal_sql(a: str, b: str) -> str:
    """version.newer_or_equal of two VARBINARY expressions; a null is empty bytes. Never null itself."""
    a, b = f"COALESCE({a}, X'')", f"COALESCE({b}, X'')"
    # SUBSTRING counts from 1.
    return (
        f"IF(SUBSTRING({a}, 25) = SUBSTRING({b}, 25), SUBSTRING({a}, 9, 16) >= SUBSTRING({b}, 9, 16), "
        f"CONCAT(SUBSTRING({a}, 1, 8), SUBSTRING({a}, 25)) >= CONCAT(SUBSTRING({b}, 1, 8), SUBSTRING({b}, 25)))"
    )


def may_replace_sql(version: str, old_version: str, *, fresh: str | None = None, old_fresh: str | None = None) -> str:
    """Whether an upsert may replace a row, by the table's rule.

    Without a freshness column: by version. With one: the greater value wins, equal values by version; a null
    is older than any value.
    """
    by_version = newer_or_equal_sql(version, old_version)
    if fresh is None or old_fresh is None:
        return by_version
    return (
        f"CASE WHEN {fresh} <=> {old_fresh} THEN {by_version} WHEN {old_fresh} IS NULL THEN 1 "
        f"WHEN {fresh} IS NULL THEN 0 ELSE {fresh} > {old_fresh} END"
    )
