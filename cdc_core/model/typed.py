"""Checks the contents of a stage file, field by field, against the types of the dataclass that holds them.

A checked value may be used without further checks: an integer has 64 bits and is not negative, one whose name ends
in `_us` is a time that Python can hold, a text can be encoded, a tuple and a mapping hold what their types say.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Check = Callable[[Any], None]
_LATEST_US = 253_402_300_799_999_999


class WrongType(ValueError):
    """`path` leads to the field, outermost name last."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path))} {self.what}"


def require_types(value: DataclassInstance) -> None:
    """Raises WrongType where a field of the dataclass instance, at any depth, is not of its declared type."""
    _check_of(type(value))(value)


@cache
def _check_of(hint: Any) -> Check:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is int:
        return _integer
    if hint is str:
        return _text
    if hint is bool:
        return _boolean
    if origin in (Union, types.UnionType):
        (kind,) = (one for one in arguments if one is not type(None))
        return _optional(_check_of(kind))
    if origin is tuple:
        return _sequence(_check_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_check_of(arguments[1]))
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member(hint)
    raise TypeError(f"a field of type {hint} cannot be checked")


def _integer(value: Any) -> None:
    if type(value) is not int:
        raise WrongType(f"is {_shown(value)}, not an integer")
    if not 0 <= value < 1 << 63:
        raise WrongType("is not between 0 and 2^63 - 1")


def _moment(value: Any) -> None:
    _integer(value)
    if value > _LATEST_US:
        raise WrongType("is a time after the year 9999")


def _text(value: Any) -> None:
    if type(value) is not str:
        raise WrongType(f"is {_shown(value)}, not a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WrongType("is not a text that can be encoded") from None


def _boolean(value: Any) -> None:
    if type(value) is not bool:
        raise WrongType(f"is {_shown(value)}, not true or false")


def _member(kind: type[Enum]) -> Check:
    def checked(value: Any) -> None:
        if type(value) is not kind:
            raise WrongType(f"is {_shown(value)}, not one of {', '.join(str(one.value) for one in kind)}")

    return checked


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _sequence(check: Check) -> Check:
    def checked(value: Any) -> None:
        if type(value) is not tuple:
            raise WrongType(f"is {_shown(value)}, not a list")
        for index, one in enumerate(value):
            _at(str(index), check, one)

    return checked


def _mapping(check: Check) -> Check:
    def checked(value: Any) -> None:
        if type(value) is not dict:
            raise WrongType(f"is {_shown(value)}, not an object")
        for name, one in value.items():
            _at("(name)", _text, name)
            _at(name, check, one)

    return checked


def _record(kind: type) -> Check:
    hints = get_type_hints(kind)
    checks = [
        (one.name, _moment if one.name.endswith("_us") else _check_of(hints[one.name]))
        for one in fields(kind)
        if one.init
    ]

    def checked(value: Any) -> None:
        if type(value) is not kind:
            raise WrongType(f"is {_shown(value)}, not an object")
        for name, check in checks:
            _at(name, check, getattr(value, name))

    return checked


def _at(name: str, check: Check, value: Any) -> None:
    try:
        check(value)
    except WrongType as error:
        error.path.append(name)
        raise


def _shown(value: Any) -> str:
    return ascii(value)[:40]
