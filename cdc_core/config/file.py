"""From the text of a pipeline file to its model: errors name the key path, the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, Tag, ValidationError

from cdc_core.config.pipeline import Pipeline
from cdc_core.config.value_types import URL_LOGIN, WAY_BACK_SUFFIX
from cdc_core.errors import UsageError
from cdc_core.model.readable import counted

_NEVER_SHOWN = ("salt", "s3_endpoint", "url")
"""Keys whose value may be a secret in the wrong form."""
_FORMS = {
    "tuple_type": "must be a list, such as [one, other]",
    "dict_type": "must be keys with values, such as {key: value}",
    "model_type": "must be keys with values, such as {key: value}",
    "model_attributes_type": "must be keys with values, such as {key: value}",
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "missing": "is required",
}
"""What the file has to have instead, by Pydantic's name of the problem."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, of which YAML would silently use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is written twice in one place", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(text: str, *, where: str) -> Pipeline:
    """A pipeline from YAML text; `where` names the file in errors. Raises UsageError (config.invalid)."""
    try:
        data: Any = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(
            f"The file is not valid YAML: {_without_secrets(str(error))}",
            where=where,
            code="config.invalid",
            remedy="fix the line that the message names",
        ) from None
    if data is None:
        raise UsageError(
            "The pipeline file is empty.", where=where, code="config.invalid", remedy="`lockstep init` writes one"
        )
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        problems = list(dict.fromkeys(_explain(dict(problem)) for problem in _relevant(error)))
        said = "; ".join(problems)
        raise UsageError(
            f"{counted(len(problems), 'problem')} in the pipeline: {said}" + ("" if said.endswith("?") else "."),
            where=where,
            code="config.invalid",
            remedy="see docs/configuration.md for every key and its values",
        ) from None


def _without_secrets(text: str) -> str:
    """A URL in the wrong key may contain a password: never repeat it."""
    return URL_LOGIN.sub("//***@", text)


def _relevant(error: ValidationError) -> list[Any]:
    """Without consequences of another problem: the other forms of a value, a list whose items are wrong."""
    problems = error.errors()
    wrong = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if not (problem["type"] == "literal_error" and isinstance(problem["input"], dict))
        and not (problem["type"] == "model_type" and isinstance(problem["input"], str) and "start" in problem["loc"])
        and not (
            problem["type"] == "tuple_type" and isinstance(problem["input"], str) and "connection" in problem["loc"]
        )
        and not (problem["type"] == "string_type" and isinstance(problem["input"], list))
        and not (
            problem["type"] == "too_short" and any(loc[:-1][: len(problem["loc"])] == problem["loc"] for loc in wrong)
        )
    ]


def _explain(problem: dict[str, Any]) -> str:
    # Pydantic puts the name of a union's member into the path: nothing that is in the file.
    path = ".".join(str(part) for part in problem["loc"] if "[" not in str(part)) or "(top level)"
    value = problem.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) or value is None else f" (got {value!r})"
    if path.rpartition(".")[2] in _NEVER_SHOWN:
        shown = ""
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] in _FORMS:
        message = _FORMS[problem["type"]]
    if problem["type"] == "extra_forbidden":
        message, shown = f"there is no such key{_nearest(problem['loc'])}", ""
    return _without_secrets(f"{path}: {message}{shown}")


def _nearest(loc: tuple[Any, ...]) -> str:
    """`; did you mean ...` or the allowed keys, found by walking the models along the path."""
    allowed = sorted(_keys_at(Pipeline, list(loc[:-1])))
    close = get_close_matches(str(loc[-1]), allowed, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; allowed are {', '.join(allowed)}" if allowed else ""


def _keys_at(model: type[BaseModel], path: list[Any]) -> set[str]:
    for depth, part in enumerate(path):
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            models = models_in(field.annotation, path)
            return set().union(*(_keys_at(nested, path[depth + 1 :]) for nested in models))
    return set(model.model_fields)


def models_in(annotation: Any, path: Sequence[Any] | None = None) -> list[type[BaseModel]]:
    """path: a problem's; of a union's members it names the one that the file has by its tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    tags = [extra.tag for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Tag)]
    if path is not None and tags and tags[0] not in path:
        return []
    return [model for part in get_args(annotation) for model in models_in(part, path)]


def back_file(file: Path) -> Path:
    """The file of the pipeline that carries changes back, beside that of the way there."""
    return file.with_name(f"{file.stem}{WAY_BACK_SUFFIX}{file.suffix}")


def load(path: Path) -> Pipeline:
    """The pipeline of a file, the paths in it absolute. Raises UsageError when it cannot be read or is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The pipeline file cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}.",
            where=str(path),
            code="config.invalid",
            remedy="give the path of a YAML file, or write one with `lockstep init`",
        ) from None
    parsed = parse(text, where=str(path))
    folder = path.absolute().parent
    suites = tuple(suite.model_copy(update={"path": str(folder / suite.path)}) for suite in parsed.quality.suites)
    return parsed.model_copy(update={"quality": parsed.quality.model_copy(update={"suites": suites})})


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the pipeline file, for editors."""
    return Pipeline.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
