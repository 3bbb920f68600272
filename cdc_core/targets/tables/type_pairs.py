"""Which column types of a target take every value of a source's column unchanged: the table PAIRS.

A pair is allowed, refused with a problem, or missing in the table, which refuses it too: no value is converted on its
way. `reported` says whether the server itself reports each value that does not fit, so that single rows can be set
aside. `widened` gives the type to which to change the target's column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cdc_core.model.collations import spell_out_utf8
from cdc_core.model.schema import BINARY_BASES, GEOMETRY_BASES, INTEGER_BYTES, TEXT_BASES, ColumnType

SHORTER, SMALLER, NEGATIVE = "it is shorter", "it has a smaller range", "it takes no negative numbers"
TIMESTAMP_RANGE, CHARSET = "TIMESTAMP has a smaller range", "its charset lacks characters"
NULLS = "it replaces null with a value of its own"
DIFFER, DIGITS, FRACTION = "the types differ", "it has fewer digits", "it has fewer fractional digits"
SPACES = "a CHAR column cuts spaces off the end"
_REPORTED = frozenset({SHORTER, SMALLER, NEGATIVE, TIMESTAMP_RANGE, CHARSET})

Rule = Callable[[ColumnType, ColumnType], str]
"""The problem of a pair of types, source and target; "" if every value arrives unchanged."""


def problem(source: ColumnType, target: ColumnType) -> str:
    """Why a target column does not take every value of a source column unchanged; "" if it does."""
    for pair in PAIRS:
        if source.base in pair.sources and target.base in pair.targets:
            return pair.rule(source, target)
    return DIFFER


def reported(found: str, target: ColumnType) -> bool:
    """Whether the server reports each value that this problem concerns. It silently rounds fractions, and cuts spaces
    off a CHAR."""
    return found in _REPORTED and target.base != "char"


def widened(source: ColumnType, target: ColumnType, *, mariadb: bool) -> ColumnType:
    """The nearest type for the target's column that takes every value of the source's."""
    return next(candidate for candidate in _candidates(source, target, mariadb) if not problem(source, candidate))


def _candidates(source: ColumnType, target: ColumnType, mariadb: bool) -> Iterator[ColumnType]:
    own = native(source, mariadb=mariadb)
    if own.base in TEXT_BASES:
        there = target if target.charset else own
        for charset in (there, own):
            for base in (own.base, *_TEXT_BYTES):
                length = own.length if base in ("char", "varchar") else None
                yield replace(own, base=base, length=length, charset=charset.charset, collation=charset.collation)
    yield own


def native(kind: ColumnType, *, mariadb: bool) -> ColumnType:
    """The type itself, or its substitute on a server that does not have it."""
    if not mariadb and kind.base in _TEXT_FORMS:
        return ColumnType("varchar", length=_TEXT_FORMS[kind.base], charset="utf8mb4", collation="utf8mb4_bin")
    if mariadb and kind.base == "json":
        return ColumnType("longtext", charset="utf8mb4", collation="utf8mb4_bin")
    if kind.base in _SAME_GEOMETRY:
        return replace(kind, base="geometrycollection")
    return kind


def _always(source: ColumnType, target: ColumnType) -> str:
    return ""


def _integers(source: ColumnType, target: ColumnType) -> str:
    bits, width = INTEGER_BYTES[source.base] * 8, INTEGER_BYTES[target.base] * 8
    if source.unsigned == target.unsigned:
        return "" if width >= bits else SMALLER
    if source.unsigned:
        return "" if width > bits else SMALLER
    return NEGATIVE


_INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 20}


def _integer_in_decimal(source: ColumnType, target: ColumnType) -> str:
    digits = (target.precision or 10) - (target.scale or 0)
    if digits < _INTEGER_DIGITS[source.base]:
        return DIGITS
    return "" if source.unsigned or not target.unsigned else NEGATIVE


def _decimals(source: ColumnType, target: ColumnType) -> str:
    whole = (source.precision or 10) - (source.scale or 0)
    if (target.scale or 0) < (source.scale or 0) or (target.precision or 10) - (target.scale or 0) < whole:
        return DIGITS
    return "" if source.unsigned or not target.unsigned else NEGATIVE


def _floats(source: ColumnType, target: ColumnType) -> str:
    if target.precision is not None and (source.base, source.precision, source.scale) != (
        target.base,
        target.precision,
        target.scale,
    ):
        return "it rounds to fewer digits"
    return "" if source.unsigned or not target.unsigned else NEGATIVE


def _moments(source: ColumnType, target: ColumnType) -> str:
    if source.base == "datetime" and target.base == "timestamp":
        return TIMESTAMP_RANGE
    return _fractions(source, target)


def _fractions(source: ColumnType, target: ColumnType) -> str:
    return "" if target.fsp >= source.fsp else FRACTION


def _labels(source: ColumnType, target: ColumnType) -> str:
    missing = [label for label in source.labels if label not in target.labels]
    return f"it lacks the label {missing[0]!r}" if missing else ""


def _same_length(source: ColumnType, target: ColumnType) -> str:
    return "" if source.length == target.length else "the lengths differ"


def _geometries(source: ColumnType, target: ColumnType) -> str:
    one, other = ("geometrycollection" if kind.base in _SAME_GEOMETRY else kind.base for kind in (source, target))
    return "" if other in (one, "geometry") else "it takes another kind of geometry"


_BLOB_BYTES = {"tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1}


def _bytes(source: ColumnType, target: ColumnType) -> str:
    # BINARY(n) pads shorter values, and would return other bytes.
    if target.base == "binary" and (source.base, source.length) != (target.base, target.length):
        return "a BINARY column pads its values"
    width = _BLOB_BYTES.get(target.base) or target.length or 0
    return "" if width >= (_BLOB_BYTES.get(source.base) or source.length or 0) else SHORTER


_TEXT_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
LARGE = frozenset({*_TEXT_BYTES, *_BLOB_BYTES})
"""Types that an index takes only by a prefix, and MySQL with a default only as an expression; so is JSON."""
_TEXT_FORMS = {"uuid": 36, "inet4": 15, "inet6": 45}
_SAME_GEOMETRY = ("geometrycollection", "geomcollection")


def _text(source: ColumnType, target: ColumnType) -> str:
    if target.base == "char" and source.base != "char":
        return SPACES
    return _plain_text(source, target)


def _plain_text(source: ColumnType, target: ColumnType) -> str:
    charset = "utf8mb4" if source.base == "json" else "ascii" if source.base in _TEXT_FORMS else source.charset
    if not _has_characters(charset, target.charset):
        return CHARSET
    characters = _characters(source)
    if target.base not in _TEXT_BYTES:
        return "" if (target.length or 0) >= characters else SHORTER
    size_bytes = characters * _character_bytes(charset, target.charset)
    if source.base in _TEXT_BYTES and _same_bytes(charset, target.charset):
        size_bytes = _TEXT_BYTES[source.base]
    return "" if _TEXT_BYTES[target.base] >= min(size_bytes, _TEXT_BYTES["longtext"]) else SHORTER


def _characters(source: ColumnType) -> int:
    """How many characters a value may have."""
    if source.base == "enum":
        return max((len(label) for label in source.labels), default=0)
    if source.base == "set":
        return sum(len(label) + 1 for label in source.labels) - 1
    if source.base == "json":
        return _TEXT_BYTES["longtext"]
    return _TEXT_FORMS.get(source.base) or _TEXT_BYTES.get(source.base) or source.length or 0


_UNICODE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_BASIC_PLANE = {"utf8mb3": 3, "utf8": 3, "ucs2": 2}
_LARGER = _UNICODE | {"gb18030", ""}
"""Charsets with characters beyond the basic plane; "" is an unknown one."""
CHARACTER_BYTES = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, **_BASIC_PLANE, "ujis": 3, "eucjpms": 3,
    "sjis": 2, "cp932": 2, "euckr": 2, "gb2312": 2, "gbk": 2, "big5": 2,
}  # fmt: skip
"""The most bytes of a character; 1 for the others."""
_ASCII_DIFFERS = frozenset({"swe7", "sjis", "cp932"})


def _has_characters(source: str, target: str) -> bool:
    """Whether a charset has all characters of another."""
    if not source or not target or target in _UNICODE or spell_out_utf8(source) == spell_out_utf8(target):
        return True
    if target in _BASIC_PLANE:
        return source not in _LARGER
    return source == "ascii" and target not in _ASCII_DIFFERS


def _same_bytes(source: str, target: str) -> bool:
    """Whether text takes no more bytes in the target's charset."""
    return source == target or (source in ("utf8", "utf8mb3", "") and target in ("utf8", "utf8mb3", "utf8mb4"))


def _character_bytes(source: str, target: str) -> int:
    """The most bytes that a character of one charset takes in another."""
    if source == "ascii" and target not in ("ucs2", "utf16", "utf16le", "utf32"):
        return 1
    return (
        min(CHARACTER_BYTES.get(target, 1), 3)
        if source not in _LARGER and target == "utf8mb4"
        else CHARACTER_BYTES.get(target, 1)
    )


@dataclass(frozen=True, slots=True)
class TypePair:
    """Source types that may go into target types, unless the rule finds a problem."""

    sources: frozenset[str]
    targets: frozenset[str]
    rule: Rule


def _pair(sources: frozenset[str] | str, targets: frozenset[str] | str, rule: Rule) -> TypePair:
    one, other = (frozenset(side.split()) if isinstance(side, str) else side for side in (sources, targets))
    return TypePair(one, other, rule)


_INTEGER_BASES = frozenset(INTEGER_BYTES)

PAIRS: tuple[TypePair, ...] = (
    _pair(_INTEGER_BASES, _INTEGER_BASES, _integers),
    _pair(_INTEGER_BASES, "decimal", _integer_in_decimal),
    _pair("decimal", "decimal", _decimals),
    _pair("float", "float double", _floats),
    _pair("double", "double", _floats),
    _pair("bit", "bit", _same_length),
    _pair("date", "date", _always),
    _pair("year", "year", _always),
    _pair("time", "time", _fractions),
    _pair("datetime timestamp", "datetime timestamp", _moments),
    _pair(TEXT_BASES, TEXT_BASES, _text),
    _pair("enum", "enum", _labels),
    _pair("set", "set", _labels),
    # Labels have no trailing spaces, and neither do the texts of the others: a CHAR returns them unchanged.
    _pair("enum set uuid inet4 inet6", TEXT_BASES, _plain_text),
    _pair("json", "json", _always),
    _pair("json", TEXT_BASES, _text),
    _pair(BINARY_BASES, BINARY_BASES, _bytes),
    _pair(GEOMETRY_BASES, GEOMETRY_BASES, _geometries),
    _pair("vector", "vector", _same_length),
    _pair("uuid", "uuid", _always),
    _pair("inet4", "inet4", _always),
    _pair("inet6", "inet6", _always),
)
"""The first pair that has both types decides; types without a pair are refused."""
