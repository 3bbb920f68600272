"""Documents, the page, and the texts and docstrings of the code are in plain English: words that readers had to guess
at stay out (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "plugins" / "lockstep_airflow" / "page"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *PAGE.glob("*.html"), PAGE / "glossary.py"])
PACKAGES = ("cdc_core", "lockstep", "plugins", "spark_jobs")
CODE = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
AVOIDED = {
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more than\b)[a-z]+": "is not a",
    r"\bgo(es|ing)? on\b": "continue",
    r"(?-i:(^|\. )Who(ever)? [a-z]+)|[;|] who(ever)? [a-z]+": "name the actor: a run that ..., the user who ...",
    r"(?-i:(^|[.;|] )Of (an?|the|such|each) [^.;,|]{3,60} (no|nothing) [a-z]+)": "no X of Y is ...",
    r"\b(can)?not be told\b": "is unknown",
}
"""Pattern -> what to write instead."""
RIDDLES = (
    "The part is no file.", "It goes on there.", "It waits; whoever drains it waits.",
    "Of a masked column no value is staged.", "Its state cannot be told.",
)  # fmt: skip


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_words_that_readers_know(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{path.name}:{number}: {habit}" for number, line in lines for habit in habits(line)] == []


def test_a_sentence_that_readers_would_have_to_guess_at_is_found() -> None:
    assert all(habits(line) for line in RIDDLES)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_and_docstrings_use_the_words_that_readers_know(path: Path) -> None:
    found = [(line, habit) for line, text in texts_of(path.read_text(encoding="utf-8")) for habit in habits(text)]
    assert [f"{path.name}:{line}: {habit}" for line, habit in found] == []


def test_texts_are_found_wherever_they_are_and_however_they_are_put_together() -> None:
    source = '''
"""It is no file."""
why = f"{name} is no {kind}" + f"table{'' if one else ' more'}"
raise Refused(why, remedy="fix " "it" if one else FIX)
'''
    assert {text for _, text in texts_of(source)} == {"It is no file.", "x is no x", "tablex", "", " more", "fix it"}


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a module, each with its line: a finding, or a text that a variable carries into an error, is written
    far from the call that shows it."""
    yield from texts(ast.parse(source))


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in an expression; an x is in the place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
        return
    parts: list[ast.expr] = node.values if isinstance(node, ast.JoinedStr) else []
    if parts:
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
    for child in ast.iter_child_nodes(node):
        if child not in parts or not isinstance(child, ast.Constant):
            yield from texts(child)


def habits(line: str) -> list[str]:
    """What a line says that it should not, and what to write instead."""
    return [
        f"{match[0]!r}, write: {better}"
        for pattern, better in AVOIDED.items()
        if (match := re.search(pattern, line, re.IGNORECASE)) and "`" not in match[0]
    ]
