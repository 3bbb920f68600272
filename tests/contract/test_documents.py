"""The documents say what the code does: no key, command or error code that only one of them knows."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.exceptions import TyperException
from typer.main import get_command

from cdc_core import config, errors
from cdc_core.cli import cli_document
from cdc_core.cli.app import app
from cdc_core.cli.performable import performable
from tests.contract.product_source import ROOT, modules, nodes

DOCS = ROOT / "docs"
CODE = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*\.[a-z][a-z0-9_]*$")
STALE = "run `python -m cdc_core.cli.cli_document`"


CODE_FOLDERS = (
    "cdc_core", "spark_jobs", "plugins", "expectations", "lockstep",
    "dags", "examples", "benchmarks", "tests", "docker",
)  # fmt: skip
CITED_DOCUMENT = re.compile(r"(?<![\w./{}-])((?:[\w.-]+/)*[\w-]+\.md)\b")


def test_the_site_and_its_first_page_lead_to_every_document() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.split()}
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages - listed == set()
    assert [page for page in sorted(pages) if f"({page}.md)" not in index] == []


def test_every_document_that_the_code_cites_is_in_the_repository() -> None:
    """By its path from the root, or by its name where it is in docs/ or at the root."""
    wrong, seen = [], 0
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".sh", ".yaml") or path == Path(__file__):
                continue
            for name in CITED_DOCUMENT.findall(path.read_text(encoding="utf-8")):
                seen += 1
                if not (ROOT / name).is_file() and not (DOCS / name).is_file():
                    wrong.append(f"{path.relative_to(ROOT)} cites {name}")
    assert seen > 20
    assert wrong == []


def test_every_module_and_name_that_the_table_of_rules_cites_is_in_the_code() -> None:
    rules = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Where each rule is")[2]
    cited = re.findall(r"(?:`(\w+)` in )?`((?:cdc_core|spark_jobs)/[\w/]+\.py)`", rules)
    assert len(cited) >= 10
    missing = [path for _, path in cited if not (ROOT / path).is_file()]
    assert missing == []
    assert [(name, path) for name, path in cited if name not in (ROOT / path).read_text(encoding="utf-8")] == []


def test_every_link_of_a_document_leads_to_a_file_and_a_heading() -> None:
    wrong = []
    for document in (*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for shown, target in re.findall(r"(?:\[([^\[\]]*))?\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            if shown.endswith(".md") and Path(shown).name != Path(name).name:
                wrong.append(f"{document.name}: {shown} is not {name}")
            if "://" in target:
                continue
            path = (document.parent / name) if name else document
            if not path.exists() or (anchor and anchor not in anchors(path)):
                wrong.append(f"{document.name}: {target}")
    assert wrong == []


def anchors(document: Path) -> set[str]:
    """The anchors that a reader of Markdown makes of headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PRODUCT = modules("cdc_core", "spark_jobs", "plugins", "expectations")


@cache
def raised_codes() -> dict[str, str]:
    """Every literal that is given as `code=`, or that a class of errors has as its own, and where."""
    found = {}
    for path in PRODUCT:
        for node in nodes(path):
            given = isinstance(node, ast.keyword) and node.arg == "code"
            own = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "own_code"
            if given or own:
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value] = f"{path.relative_to(ROOT)}:{part.lineno}"
    return found


def literals() -> set[str]:
    return {
        node.value
        for path in PRODUCT
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def documented_codes() -> list[str]:
    return re.findall(r"^### (\S+)$", (DOCS / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_code_that_is_raised_is_a_name_of_room_and_slug() -> None:
    assert [f"{code} ({place})" for code, place in raised_codes().items() if not CODE.match(code)] == []


def test_every_code_that_is_raised_is_documented() -> None:
    known = set(documented_codes())
    assert [f"{code} ({place})" for code, place in raised_codes().items() if code not in known] == []


def test_a_code_has_one_class_so_that_it_says_how_to_recover() -> None:
    known = {kind.__name__: kind for kind in all_errors()}
    classes: dict[str, set[str]] = {kind.own_code: {errors.severity(kind).__name__} for kind in known.values()}
    for path in PRODUCT:
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                raised = known[node.func.id]
                codes = [part.value for part in node.keywords if part.arg == "code"]
                assert codes or raised.own_code, f"{path}:{node.lineno}"
                for code in codes:
                    if isinstance(code, ast.Constant):
                        classes.setdefault(code.value, set()).add(errors.severity(raised).__name__)
    assert {code: kinds for code, kinds in classes.items() if len(kinds) > 1 and code} == {}


def all_errors(kind: type[errors.LockstepError] = errors.LockstepError) -> Iterator[type[errors.LockstepError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from all_errors(child)


def test_every_documented_code_exists() -> None:
    existing = literals()
    assert [code for code in documented_codes() if code not in existing] == []


def test_every_documented_code_stands_once_under_its_room_with_a_text() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert [code for code, times in Counter(documented_codes()).items() if times > 1] == []
    for section in text.split("\n## ")[2:]:
        package, *entries = section.split("\n### ")
        for entry in entries:
            code, _, meaning = entry.partition("\n")
            assert code.startswith(f"{package.splitlines()[0].strip()}."), code
            assert len(meaning.split()) >= 8, f"{code} says too little"


def test_every_code_that_a_document_names_is_documented() -> None:
    """Keys of the pipeline file, and settings of Spark, look like codes."""
    codes = set(documented_codes())
    rooms = {code.partition(".")[0] for code in codes}
    others = {"spark.archives", "spark.authenticate"} | {
        f"{path}.{key}".replace("[]", "")
        for path, model in cli_document.models(config.Pipeline, "")
        for key in model.model_fields
    }
    cited = [
        (path.name, name)
        for path in [*sorted(set(DOCS.glob("*.md")) - {DOCS / "errors.md"}), ROOT / "README.md"]
        for name in re.findall(r"`([a-z]+\.[a-z_]+)`", path.read_text(encoding="utf-8"))
    ]
    assert len([name for _, name in cited if name in codes]) > 50
    assert [
        citation for citation in cited if citation[1].partition(".")[0] in rooms and citation[1] not in codes | others
    ] == []


def test_configuration_md_lists_the_keys_of_the_models() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert cli_document.with_keys(text) == text, STALE
    assert cli_document.configuration_keys() in text


def test_every_key_of_the_models_has_a_description() -> None:
    missing = [
        f"{model.__name__}.{name}"
        for _, model in cli_document.models(config.Pipeline, "")
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert missing == []


def test_every_pipeline_file_that_a_document_shows_is_valid() -> None:
    shown = [
        (path.name, example)
        for path in (*sorted(DOCS.glob("*.md")), ROOT / "README.md")
        for example in re.findall(r"^```yaml\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        if "pipeline" in yaml.safe_load(example)
    ]
    assert {"configuration.md", "coming-from.md"} <= {name for name, _ in shown}
    assert {config.parse(example, where=name).pipeline for name, example in shown} == {"shop"}


def test_the_schema_file_is_the_schema_of_the_models() -> None:
    assert json.loads((DOCS / "pipeline.schema.json").read_text(encoding="utf-8")) == config.json_schema(), STALE


def test_every_pipeline_file_of_the_repository_is_valid() -> None:
    for path in (ROOT / "dags").rglob("*.yaml"):
        if "pipeline" in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}):
            config.load(path)


def test_cli_md_is_the_reference_of_the_commands() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == cli_document.cli_markdown(), STALE


LEAVES = [
    (path, command)
    for path, command in cli_document.commands(get_command(app), "lockstep")
    if not getattr(command, "commands", None)
]


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_command_teaches_and_answers_in_json(path: str, command: object) -> None:
    options = {name for param in command.params for name in param.opts}
    assert "--json" in options
    text = command.help or ""
    assert f"\n  {path}" in text, "its help shows no example"
    assert [param.name for param in command.params if not param.help and param.name != "help"] == []


INLINE_COMMAND = re.compile(r"`(lockstep\s[^`]*)`")
FENCED_COMMAND = re.compile(r"^(lockstep .*)$", re.MULTILINE)


def test_every_command_that_is_written_somewhere_exists_with_its_options() -> None:
    """In a document, in the remedy of an error, in a docstring."""
    known = {path: {name for param in command.params for name in param.opts} for path, command in LEAVES}
    groups = {path.rpartition(" ")[0] for path in known}
    commands = [(file, command) for file, command in written_commands() if command not in groups]
    assert len(commands) > 150
    wrong = []
    for file, command in commands:
        words = re.split(r" #| > | \| |; |, ", command)[0].split()
        path = next((" ".join(words[:end]) for end in (3, 2) if " ".join(words[:end]) in known), None)
        options = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
        if path is None or options - known[path] - {"--help"}:
            wrong.append(f"{file}: {command}")
    assert wrong == []


BY_THE_READER = {
    "init", "ddl plan", "ddl run", "spark pack", "stage export", "reshard", "-vv check PIPELINE",
}  # fmt: skip
"""Commands of remedies that need what only the reader can know: a file, a name, a number of shards."""


def test_every_command_of_a_remedy_can_be_given_as_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line adds the pipeline of the command that has failed."""
    monkeypatch.setattr("sys.argv", ["lockstep", "-v", "check", "PIPELINE", "--json"])
    tree, seen, wrong = get_command(app), 0, []
    for place, remedy in remedies():
        for command in INLINE_COMMAND.findall(performable(remedy)):
            words, node, at = command.split()[1:], tree, 0
            while at < len(words) and words[at] in getattr(node, "commands", {}):
                node, at = node.commands[words[at]], at + 1
            seen += 1
            try:
                if " ".join(words[:at]) not in BY_THE_READER and " ".join(words) not in BY_THE_READER:
                    node.make_context(words[at - 1], words[at:])
            except TyperException as error:
                wrong.append(f"{place}: {command}: {error.format_message()}")
        if re.search(r"\blockstep [a-z-]+( [a-z-]+)? (PIPELINE|X)\b", re.sub(r"`[^`]*`", "", remedy)):
            wrong.append(f"{place}: a command without backticks")
    assert seen > 80
    assert wrong == []


def remedies() -> Iterator[tuple[str, str]]:
    """Place and text of each literal that is given as `remedy=`, and of those that several errors share."""
    for path in PRODUCT:
        shared = path.name == "errors.py"
        for given in (
            node for node in nodes(path) if shared or (isinstance(node, ast.keyword) and node.arg == "remedy")
        ):
            inner = list(ast.walk(given.value if isinstance(given, ast.keyword) else given))
            parts = {part for node in inner if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in inner:
                place = f"{path.name}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.JoinedStr):
                    yield (
                        place,
                        "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in node.values),
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
                    yield place, node.value


def written_commands() -> Iterator[tuple[str, str]]:
    """File and command; without those that have a placeholder or an option of all commands first."""
    for file, text, patterns in written_texts():
        for pattern in patterns:
            for line in pattern.findall(text):
                command = " ".join(line.split())
                if not re.match(r"lockstep (COMMAND|X|-)", command):
                    yield file, command


def written_texts() -> Iterator[tuple[str, str, Sequence[re.Pattern[str]]]]:
    for path in [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        yield path.name, path.read_text(encoding="utf-8"), (INLINE_COMMAND, FENCED_COMMAND)
    for path in PRODUCT:
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value, (INLINE_COMMAND,)
            elif isinstance(node, ast.JoinedStr):
                parts = (str(value.value) if isinstance(value, ast.Constant) else "X" for value in node.values)
                yield path.name, "".join(parts), (INLINE_COMMAND,)
