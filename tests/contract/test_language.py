"""The documents are in plain English: words that readers had to guess at stay out (CONTRIBUTING.md, "Language")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
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
}
"""Pattern -> what to write instead."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_words_that_readers_know(path: Path) -> None:
    found = [
        f"{path.name}:{number}: {match[0]!r}, write: {better}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for pattern, better in AVOIDED.items()
        for match in [re.search(pattern, line, re.IGNORECASE)]
        if match and "`" not in match[0]
    ]
    assert found == []
