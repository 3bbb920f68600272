"""The reference parts of docs/: generated from the commands and the models, so that they stay current.

`python -m cdc_core.cli.cli_document` writes docs/cli.md, docs/pipeline.schema.json, and the lists between the
markers of docs/configuration.md; a contract test compares them with what this module makes.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from cdc_core import config

BEGIN, END = "<!-- keys: generated -->", "<!-- end of keys -->"

_CLI_HEAD = """# Command line

Generated from the commands by `python -m cdc_core.cli.cli_document`; `lockstep COMMAND --help` says the same.

`PIPELINE` is the path of a pipeline file, or the NAME of `NAME.yaml` in the folder `--pipelines` (`dags/pipelines`),
which `LOCKSTEP_PIPELINES` sets, or in the current folder. Results go to stdout, progress and errors to stderr. With
`--json`, stdout is exactly one JSON document, even if a command fails. The variable in brackets sets an option.

Exit codes: 0 done, 2 usage, 3 refused, 4 data at risk, 75 retry later, 70 internal ([errors.md](errors.md)).
"""
_SAID_ONCE = ("--json", "--pipelines", "PIPELINE")
"""Options and arguments that the head explains."""


def cli_markdown() -> str:
    """docs/cli.md."""
    from cdc_core.cli.app import app

    parts = [_CLI_HEAD]
    for path, command in commands(get_command(app), "lockstep"):
        parts.append(f"## {path}\n\n{_prose(command.help or '')}\n")
        rows = [_parameter(param) for param in command.params if param.name != "help" and not _is_said(param)]
        if rows:
            parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


def _prose(text: str) -> str:
    """Help text to Markdown: a block that typer must not wrap becomes a code block."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        block = paragraph.strip("\n")
        if block.startswith("\b"):
            lines = block.splitlines()[1:]
            block = "```\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```"
        else:
            block = textwrap.fill(" ".join(block.split()), 120, break_long_words=False, break_on_hyphens=False)
        paragraphs.append(block.replace("\\[", "["))
    return "\n\n".join(paragraphs)


def _is_said(param: Any) -> bool:
    return param.metavar in _SAID_ONCE or any(name in _SAID_ONCE for name in param.opts)


def _parameter(param: Any) -> str:
    text = (param.help or "").replace("\\[", "[")
    if param.param_type_name == "argument":
        return _wrapped(f"- `{param.metavar or param.name.upper()}`: {text}")
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    default = (
        "" if param.default in (None, False, True, 0, (), "") or callable(param.default) else f" (`{param.default}`)"
    )
    variable = f" [{param.envvar}]" if param.envvar else ""
    return _wrapped(f"- {names}{default}: {text}{variable}")


def configuration_keys() -> str:
    """The lists of docs/configuration.md: one a model, one line a key."""
    paths: dict[type[BaseModel], list[str]] = {}
    for path, model in models(config.Pipeline, ""):
        paths.setdefault(model, []).append(path or "top level")
    parts = []
    for model, places in paths.items():
        keys = "\n".join(_key(name, field) for name, field in model.model_fields.items())
        parts.append(f"### {', '.join(places)}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{keys}\n")
    return "\n".join(parts)


def models(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        for nested in config.models_in(field.annotation):
            form = str(field.annotation)
            suffix = "[]" if "tuple" in form else ".<name>" if "Mapping" in form else ""
            kind = f" ({get_args(nested.model_fields['kind'].annotation)[0]})" if "kind" in nested.model_fields else ""
            yield from models(nested, f"{path}.{name}{suffix}{kind}".lstrip("."))


def _key(name: str, field: FieldInfo) -> str:
    default = " (required)"
    if not field.is_required():
        value = field.get_default(call_default_factory=True, validated_data={})
        default = "" if value is None or value == () or isinstance(value, BaseModel | dict) else f" (`{value}`)"
    return _wrapped(f"- `{name}`{default}: {field.description}")


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def with_keys(text: str) -> str:
    """The text with the lists between its markers brought up to date."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{configuration_keys()}\n{END}", text, count=1)


def schema_json() -> str:
    """docs/pipeline.schema.json."""
    return json.dumps(config.json_schema(), indent=1, ensure_ascii=False) + "\n"


def write(docs: Path) -> None:
    """Bring the reference parts of docs/ up to date."""
    (docs / "cli.md").write_text(cli_markdown(), encoding="utf-8")
    (docs / "pipeline.schema.json").write_text(schema_json(), encoding="utf-8")
    configuration = docs / "configuration.md"
    configuration.write_text(with_keys(configuration.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path("docs"))
