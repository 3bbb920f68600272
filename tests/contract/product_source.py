"""The product's modules, each read, parsed and walked once for all tests of this folder."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def modules(*folders: str) -> tuple[Path, ...]:
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of the syntax of a module."""
    return tuple(ast.walk(ast.parse(text_of(path))))
