"""Options and arguments that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_core.errors import UsageError
from cdc_core.model import windows
from cdc_core.model.windows import parse_moment, to_us

if TYPE_CHECKING:
    from cdc_core.config import Pipeline

SourcesOption = Annotated[
    list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
]
TargetsOption = Annotated[
    list[str] | None, typer.Option("--target", metavar="NAME", help="Only this target; may be repeated.")
]
TargetOption = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="The target; default: the only one.")
]
TablesOption = Annotated[
    list[str] | None, typer.Option("--table", metavar="NAME", help="Only this logical table; may be repeated.")
]
UntilOption = Annotated[
    str, typer.Option("--until", metavar="now|TIME", help="Read up to now, or up to an ISO 8601 time with a zone.")
]
PartialOption = Annotated[bool, typer.Option("--partial", help="Accept a state with missing rows.")]
JsonOption = Annotated[bool, typer.Option("--json", envvar="LOCKSTEP_JSON", help="Print one JSON document on stdout.")]


def require_free(file: Path, *, force: bool) -> None:
    """Raises UsageError (usage.output_file) for a file that exists, unless it may be overwritten."""
    if file.exists() and not force:
        raise UsageError(
            f"{file} exists already.",
            where=str(file),
            code="usage.output_file",
            remedy="choose another -o FILE, or --force",
        )


def read_text(file: Path, what: str) -> str:
    """Raises UsageError (usage.argument). what: the file should have."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.",
            where=str(file),
            code="usage.argument",
            remedy=f"give the path of a text file with {what}",
        ) from None


def write_text(file: Path, text: str) -> None:
    """Raises UsageError (usage.output_file)."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raises UsageError (usage.output_file) where the system does not let the file or folder be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"Cannot write {place}: {error.strerror}.",
            where=str(place),
            code="usage.output_file",
            remedy="choose another place with -o",
        ) from None


def pipeline_path(name: str, folder: Path) -> Path:
    """The file of PIPELINE. Raises UsageError (usage.unknown_name) with the names that exist."""
    given = Path(name)
    if given.suffix in (".yaml", ".yml") or os.sep in name:
        return given
    file = folder / f"{name}.yaml"
    # Messages name pipelines, so that what they advise can be pasted where the file is, too.
    for path in (file, Path(f"{name}.yaml")):
        if path.is_file():
            return path
    names = sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
    if names:
        remedy = f"give one of {', '.join(names)}, or a path"
    else:
        remedy = (
            "give the path of a YAML file, or name the folder with --pipelines or LOCKSTEP_PIPELINES; `lockstep init` "
            "makes a pipeline"
        )
    raise UsageError(
        f"There is no pipeline {name!r} in {folder}.",
        where=str(file),
        code="usage.unknown_name",
        remedy=remedy,
    )


def load_pipeline(name: str, folder: Path) -> tuple[Path, Pipeline]:
    """The file of PIPELINE and the parsed pipeline."""
    from cdc_core.config import load

    path = pipeline_path(name, folder)
    return path, load(path)


def moment_us(text: str) -> int | None:
    """`now` -> None (the server's current position); an ISO 8601 time with a zone -> µs UTC."""
    if text == "now":
        return None
    return time_us(text, "--until", "'now' or ")


def age_us(text: str, option: str, example: str) -> int:
    """µs of an age such as `10s` or `30d`. Raises UsageError (usage.argument)."""
    try:
        return windows.age_us(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} {error}.", where=option, code="usage.argument", remedy=f"write for example {example}"
        ) from None


def time_us(text: str, option: str, instead: str = "") -> int:
    """µs UTC of an ISO 8601 time with a zone. instead: other accepted values. Raises UsageError (usage.argument)."""
    try:
        return to_us(parse_moment(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} {error}.",
            where=option,
            code="usage.argument",
            remedy=f"write {instead}a time with a zone, for example 2026-11-21T04:00:00Z",
        ) from None
