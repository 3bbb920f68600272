"""Documents, the page, and the texts and docstrings of the code are in plain English: words that readers had to guess
at stay out (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.contract.product_source import ROOT, modules, text_of

PAGE = ROOT / "plugins" / "lockstep_airflow" / "page"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *PAGE.glob("*.html"), PAGE / "glossary.py"])
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


def test_documents_use_the_words_that_readers_know() -> None:
    lines = [(path, number, line) for path in DOCUMENTS for number, line in enumerate(text_of(path).splitlines(), 1)]
    assert [f"{path.name}:{number}: {habit}" for path, number, line in lines for habit in habits(line)] == []


def test_a_sentence_that_readers_would_have_to_guess_at_is_found() -> None:
    assert all(habits(line) for line in RIDDLES)


def test_texts_and_docstrings_use_the_words_that_readers_know() -> None:
    """A finding, or a text that a variable carries into an error, is written far from the call that shows it."""
    product = modules("cdc_core", "lockstep", "plugins", "spark_jobs")
    found = [(path, *text) for path in product for text in texts(ast.parse(text_of(path)))]
    assert [f"{path.name}:{line}: {habit}" for path, line, text in found for habit in habits(text)] == []


def test_texts_are_found_wherever_they_are_and_however_they_are_put_together() -> None:
    source = '''
"""It is no file."""
why = f"{name} is no {kind}" + f"table{'' if one else ' more'}"
raise Refused(why, remedy="fix " "it" if one else FIX)
'''
    assert {text for _, text in texts(ast.parse(source))} == {
        "It is no file.",
        "x is no x",
        "tablex",
        "",
        " more",
        "fix it",
    }


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in a module or an expression, each with its line; an x is in the place of each value."""
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
