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
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\banew\b": "again",
    r"\bthe begin\b": "the start",
    r"\b(stands|stood) (in|for|at|on|beside|behind|above|below|there)\b": "is, appears",
    r"\brooms?\b": "package, space",
    r"\bben(d|ds|t)\b": "corrupt, change",
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more than\b)[a-z]+": "is not a",
    r"\bnever not\b": "always",
    r"\b(goes on|go on|starts?|begins?|lies|is|was|comes|came) behind\b": "after",
    r"\bthe way of the data\b": "data flow",
    r"\bgo(es|ing)? on\b": "continue",
    r"\breads? on\b": "continues reading",
    r"\b(is|are|was|were|be) at work\b": "is running",
    r"\bwhat becomes of\b": "what happens to",
    r"\bto be had\b": "available",
    r"(?-i:(^|\. )Who(ever)? [a-z]+)|[;|] who(ever)? [a-z]+": "name the actor: a run that ..., the user who ...",
    r"\bthe very\b": "the same, exactly the",
    r"\bso (long|often)\b(?! as)": "this long, this often",
    r"\bh[eo]ld(s|ing)? (it|them) for\b": "treat as",
    r"\b(lies?|lay|lying) (in|at|on|under|below|before|beside|after)\b": "is",
    r"\bpresent (position|state|end|ones?|definitions?|time|moment)\b": "current",
    r"\bupkeep\b": "maintenance",
    r"\bwhere (told|asked)( so)?\b": "if configured, if requested",
    r"\bone's own\b": "your own",
    r"\blets? .{1,30} in again\b": "readmit, capture again",
    r"\bput(s|ting)? (.{1,12} )?right\b": "fix, restore",
    r"\ball the same\b": "anyway, still",
    r"\b(can)?not be told\b": "is unknown",
    r"\bstand(s|ing)? by\b": "wait",
    r"\b(take[sn]?|took) up\b(?! to)": "apply, accept",
    r"\bdefects? of (ours|lockstep)\b": "a defect in Lockstep",
    r"(?-i:(^|[.;|] )Of (an?|the|such|each) [^.;,|]{3,60} (no|nothing) [a-z]+)": "no X of Y is ...",
}
"""Pattern -> what to write instead."""
RIDDLES = (
    "Mend the file.", "Begin anew.", "It stands in the log.", "The part is no file.", "It goes on there.",
    "The server reads on.", "An extractor is at work.", "What becomes of it", "The value is not to be had.",
    "Who lost its batches ends.", "It waits; whoever drains it waits.", "By the very functions", "Silent for so long",
    "It holds them for one row.", "The file lies in the folder.", "The present state", "Views and upkeep pass.",
    "Where told so, it is left out.", "A function of one's own", "Let a table in again.", "A replay puts rows right.",
    "It ends all the same.", "Its state cannot be told.", "The others stand by.", "Take up all changes.",
    "A defect of ours: report it.", "Of a masked column no value is staged.",
)  # fmt: skip


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_words_that_readers_know(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{path.name}:{number}: {habit}" for number, line in lines for habit in habits(line)] == []


@pytest.mark.parametrize("line", RIDDLES)
def test_a_sentence_that_readers_would_have_to_guess_at_is_found(line: str) -> None:
    assert habits(line)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_and_docstrings_use_the_words_that_readers_know(path: Path) -> None:
    found = [(line, habit) for line, text in texts_of(path.read_text(encoding="utf-8")) for habit in habits(text)]
    assert [f"{path.name}:{line}: {habit}" for line, habit in found] == []


def test_texts_are_found_wherever_they_are_and_however_they_are_put_together() -> None:
    source = '''
"""It is no file."""
log.warning("%s: it goes on", "name")
why = f"{name} is no {kind}" + f"table{'' if one else ' anew'}"
raise Refused(why, code="a.b", remedy="mend "
              "it" if one else FIX)
yield Finding("behind {}".format(end), f"{'one' if few else f'{many} anew'}: the begin")
TEXTS = {"key": ("a defect", b"bytes")}
'''
    assert {text for _, text in texts_of(source)} == {
        "It is no file.", "%s: it goes on", "name", "x is no x", "tablex", "", " anew", "a.b", "mend it", "behind {}",
        "x: the begin", "one", "x anew", "key", "a defect",
    }  # fmt: skip


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
