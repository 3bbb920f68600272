"""Commands, and what those about a pipeline have in common: PIPELINE, --pipelines, --json, and the opened pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import RenderableType

from cdc_core.cli.options import JsonOption, load_pipeline
from cdc_core.cli.output import CliOutput
from cdc_core.model.choices import choose

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.operations.open_pipeline import OpenPipeline
    from cdc_core.stage.objects import ObjectStore

Function = TypeVar("Function", bound=Callable[..., None])

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="A pipeline's YAML file, or the NAME of NAME.yaml in the pipelines folder or here.",
    ),
]
PipelinesOption = Annotated[
    Path,
    typer.Option(
        "--pipelines", metavar="DIR", envvar="LOCKSTEP_PIPELINES", help="Folder in which pipeline names are looked up."
    ),
]
_BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD
_PIPELINE = inspect.Parameter("pipeline", _BY_NAME, annotation=PipelineArgument)
_OF_EACH = (
    inspect.Parameter("pipelines", _BY_NAME, default=Path("dags/pipelines"), annotation=PipelinesOption),
    inspect.Parameter("as_json", _BY_NAME, default=False, annotation=JsonOption),
)


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """The pipeline that a command is about. given: PIPELINE, as it was typed. path: of its file."""

    given: str
    path: Path
    pipeline: Pipeline
    output: CliOutput

    @classmethod
    def of(cls, given: str, folder: Path, output: CliOutput) -> PipelineCall:
        """Raises UsageError (usage.unknown_name, config.invalid)."""
        return cls(given, *load_pipeline(given, folder), output)

    def answer(self, document: Mapping[str, Any], *shown: RenderableType) -> None:
        """As CliOutput.answer; the document begins with the pipeline's name."""
        self.output.answer({"pipeline": self.pipeline.pipeline, **document}, *shown)

    def sources(self, wanted: Sequence[str] | None) -> list[str]:
        """The names of the wanted sources, or of all. Raises UsageError (usage.unknown_name)."""
        return choose([source.name for source in self.pipeline.sources], wanted, "source", "--source")

    def targets(self, wanted: Sequence[str] | None) -> list[str]:
        """The names of the wanted targets, or of all. Raises UsageError (usage.unknown_name)."""
        return choose([target.name for target in self.pipeline.targets], wanted, "target", "--target")

    def databases(self, wanted: Sequence[str] | None) -> list[str]:
        """The same, of those that are servers of MySQL or MariaDB."""
        return choose([database.name for database in self.pipeline.databases], wanted, "target", "--target")

    def meta(self) -> Meta:
        from cdc_core.meta import Meta

        return Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)

    def store(self) -> ObjectStore:
        from cdc_core.stage.stores import open_stage

        return open_stage(self.pipeline.stage)

    @contextmanager
    def opened(self, *, line: bool = True) -> Iterator[OpenPipeline]:
        """The pipeline, opened for an operation. line: as TerminalProgress has it."""
        from cdc_core.cli.terminal_progress import TerminalProgress
        from cdc_core.operations.open_pipeline import open_pipeline

        with (
            TerminalProgress(self.output, line=line) as progress,
            open_pipeline(self.pipeline, progress) as ready,
        ):
            yield ready


def command(app: typer.Typer) -> Callable[[Function], Function]:
    """Registers a function as a command, with its docstring as the help."""

    def register(function: Function) -> Function:
        app.command(help=_unwrapped(function.__doc__ or ""))(function)
        return function

    return register


def pipeline_command(app: typer.Typer) -> Callable[[Function], Function]:
    """Registers a function whose first parameter is a PipelineCall: its command takes PIPELINE, --pipelines and --json
    instead, and the function's other parameters."""

    def register(function: Function) -> Function:
        _, *options = inspect.signature(function, eval_str=True).parameters.values()

        def called(pipeline: str, pipelines: Path, as_json: bool, **chosen: Any) -> None:
            function(PipelineCall.of(pipeline, pipelines, CliOutput(as_json)), **chosen)

        parameters = [_PIPELINE, *options, *_OF_EACH]
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command(app)(called)
        return function

    return register


def _unwrapped(text: str) -> str:
    """A docstring whose paragraphs fit any terminal: their lines joined, except in blocks marked with \\b."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in paragraphs)
