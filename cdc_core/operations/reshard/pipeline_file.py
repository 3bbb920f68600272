"""The text of a pipeline file with one more target, or with a target that scheduled runs feed from now on.

Comments and the form of everything else stay. What the changed text says is compared with what it should say before it
takes the place of the file, in one step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cdc_core.config import Pipeline, Target, parse
from cdc_core.errors import Refused

_ADDED = "Added by `lockstep reshard`. Scheduled runs feed it once it is filled: then the line replay_only goes."


def target_text(document: Mapping[str, Any], indent: int = 2) -> str:
    """A target as an item of `targets`."""
    lines = yaml.safe_dump([document], sort_keys=False, allow_unicode=True, width=110).splitlines()
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def add_target(path: Path, document: Mapping[str, Any]) -> None:
    """Raises Refused (reshard.file)."""
    text = path.read_text(encoding="utf-8")
    former = parse(text, where=str(path))
    wanted = former.model_copy(update={"targets": (*former.targets, Target.model_validate(document))})
    _replace(path, _with_target(text, document), wanted, target_text(document))


def let_in(path: Path, name: str) -> None:
    """From now on scheduled runs feed the target. Raises Refused (reshard.file)."""
    text = path.read_text(encoding="utf-8")
    former = parse(text, where=str(path))
    if name not in {one.name for one in former.targets}:
        raise Refused(
            f"The pipeline file does not name the target {name!r} any more: it was changed meanwhile.",
            where=str(path),
            code="reshard.file",
            remedy="what was applied stays applied, and nothing feeds the target from now on. Run the same command "
            "again: it adds the target, and applies what was staged meanwhile",
        )
    targets = tuple(
        one.model_copy(update={"replay_only": False}) if one.name == name else one for one in former.targets
    )
    wanted = former.model_copy(update={"targets": targets})
    if wanted != former:
        _replace(path, _without_replay_only(text, name), wanted, f"the target {name}: remove replay_only")


def _with_target(text: str, document: Mapping[str, Any]) -> str | None:
    """None where the text has another form than is understood."""
    node = _targets(text)
    if node is None or node.flow_style or not node.value:
        return None
    lines = text.splitlines(keepends=True)
    first = node.value[0].start_mark
    indent = lines[first.line][: first.column].rfind("-")
    end = node.end_mark.line if node.end_mark.column == 0 else node.end_mark.line + 1
    while end > first.line + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    if indent < 0:
        return None
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    added = f"{' ' * indent}# {_ADDED}\n{target_text(document, indent)}"
    return "".join([*lines[:end], added, *lines[end:]])


def _without_replay_only(text: str, name: str) -> str | None:
    node = _targets(text)
    lines = text.splitlines(keepends=True)
    for item in node.value if node is not None else ():
        if not isinstance(item, yaml.MappingNode) or item.flow_style:
            continue
        values = {key.value: (key.start_mark.line, value) for key, value in item.value}
        if "name" in values and values["name"][1].value == name and "replay_only" in values:
            at = values["replay_only"][0]
            if lines[at].strip().startswith("replay_only:"):
                kept = [line for number, line in enumerate(lines) if number != at]
                return "".join(line for line in kept if line.strip() != f"# {_ADDED}")
    return None


def _targets(text: str) -> yaml.SequenceNode | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "targets" and isinstance(value, yaml.SequenceNode):
            return value
    return None


def _replace(path: Path, text: str | None, wanted: Pipeline, by_hand: str) -> None:
    refused = Refused(
        "The pipeline file cannot be changed by a command.",
        where=str(path),
        code="reshard.file",
        remedy=f"change `targets` by hand, and run the same command again:\n{by_hand}",
    )
    if text is None or parse(text, where=str(path)).model_dump() != wanted.model_dump():
        raise refused
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.chmod(path.stat().st_mode & 0o777)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise refused from error
