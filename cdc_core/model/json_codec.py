"""JSON documents: how frozen dataclasses are stored on the stage, in meta, and between the tasks of a run.

A document has the fields of its dataclass, in their order. A value that `parsed` returns may be used without further
checks: every field, at any depth, has its declared type, a text can be encoded, and numbers are in the bounds of their
types.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Ge, Le

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Natural = Annotated[int, Ge(0), Le((1 << 63) - 1)]
TimeUs = Annotated[int, Ge(0), Le(253_402_300_799_999_999)]
"""µs UTC, a time that Python can hold: up to the year 9999."""


class UnknownVersion(ValueError):
    """A document that another version of Lockstep wrote; `version` as the document has it."""

    def __init__(self, version: object, reads: int) -> None:
        super().__init__(f"it has the format version {ascii(version)[:40]}; this Lockstep reads {reads}")
        self.version = version


def dumped(value: object, kind: Any = None, *, version: int | None = None, indent: int | None = None) -> bytes:
    """The document of a value of this kind, its own type if None; `version` comes first in it."""
    chosen: Any = kind or type(value)
    data: bytes = _adapter(chosen).dump_json(value, indent=indent)
    if version is None:
        return data
    return b'{"version":%d,' % version + data[1:] if indent is None else b'{\n "version": %d,' % version + data[1:]


def text_of(value: object, kind: Any = None) -> str:
    return dumped(value, kind).decode()


def plain(value: object) -> Any:
    """The document of a value as dicts, lists and scalars."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def parsed(kind: type[T], raw: bytes | str, *, version: int | None = None) -> T:
    """Raises UnknownVersion where the document has another version, and ValueError, TypeError or LockstepError for
    anything else that is not a document of this kind."""
    from pydantic import ValidationError

    if version is not None:
        raw = _without_version(raw, version)
    chosen: Any = kind
    try:
        found: T = _adapter(chosen).validate_json(raw, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place or 'it'} is {ascii(first['input'])[:40]}: {first['msg']}") from None
    return found


def _without_version(raw: bytes | str, version: int) -> bytes:
    from pydantic_core import from_json, to_json

    data = from_json(raw)
    if not isinstance(data, dict):
        raise ValueError("it does not hold a JSON object")
    found = data.pop("version", None)
    if type(found) is not int or found != version:
        raise UnknownVersion(found, version)
    return to_json(data)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
