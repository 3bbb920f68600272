"""Conditions on a row, as `tables.rows` of a pipeline writes them: `status in ('paid', 'sent') and amount >= 10`.

The grammar is a part of Python's: and, or, not, comparisons of columns with columns or literals, `in` a list of
literals, `is null`, `is not null`. A name is a column; column('odd name') is a column of any name.
A pure function of the text: nothing is called, and no value of a row is looked at here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

Value = str | int | Decimal | bool


@dataclass(frozen=True, slots=True)
class ColumnName:
    name: str


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """op: == != < <= > >=. At least one side is a column."""

    op: str
    left: ColumnName | Value
    right: ColumnName | Value


@dataclass(frozen=True, slots=True)
class Member:
    column: ColumnName
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Null:
    column: ColumnName


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class Joined:
    every: bool
    """Whether all parts must hold; otherwise one of them."""
    parts: tuple[Condition, ...]


Condition = ColumnComparison | Member | Null | Not | Joined

_OPS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_NAMED = {"null": None, "true": True, "false": False}


def parse(text: str) -> Condition:
    """The condition that a text expresses. Raises ValueError with the part that is not valid."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                node.kind = ast.get_source_segment(text.strip(), node)  # all digits, which a float has not
        return _condition(tree.body)
    except SyntaxError as error:
        raise ValueError(
            f"is not a condition: {error.msg}; columns are compared by == != < <= > >=, `in (...)`, `is null`, and "
            "joined by and, or, not"
        ) from None
    except (RecursionError, MemoryError):
        raise ValueError("is not a condition: it is nested too deeply") from None


def columns_of(condition: Condition) -> Iterator[str]:
    """The columns that it names."""
    match condition:
        case ColumnComparison(_, left, right):
            yield from (side.name for side in (left, right) if isinstance(side, ColumnName))
        case Member(column) | Null(column):
            yield column.name
        case Not(part):
            yield from columns_of(part)
        case Joined(_, parts):
            for part in parts:
                yield from columns_of(part)


def literals_of(condition: Condition) -> Iterator[tuple[str, Value]]:
    """The literals that it compares columns with, each with its column."""
    match condition:
        case ColumnComparison(_, left, right):
            for side, other in ((left, right), (right, left)):
                if isinstance(side, ColumnName) and not isinstance(other, ColumnName):
                    yield side.name, other
        case Member(ColumnName(name), values):
            yield from ((name, value) for value in values)
        case Not(part):
            yield from literals_of(part)
        case Joined(_, parts):
            for part in parts:
                yield from literals_of(part)


def _condition(node: ast.expr) -> Condition:
    match node:
        case ast.BoolOp(op, values):
            return Joined(isinstance(op, ast.And), tuple(_condition(value) for value in values))
        case ast.UnaryOp(ast.Not(), operand):
            return Not(_condition(operand))
        case ast.Compare(left, ops, comparators):
            pairs = zip(ops, pairwise([left, *comparators]), strict=True)
            parts = tuple(_comparison(op, *pair) for op, pair in pairs)
            return parts[0] if len(parts) == 1 else Joined(True, parts)
    raise ValueError(f"{ast.unparse(node)!r} is not a comparison")


def _comparison(op: ast.cmpop, left: ast.expr, right: ast.expr) -> Condition:
    term = _term(left)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts or not isinstance(term, ColumnName):
            raise ValueError(
                f"{ast.unparse(right)!r}: `in` asks whether a column is in a list of values, as in ('a', 'b')"
            )
        member = Member(term, tuple(_literal(value) for value in right.elts))
        return Not(member) if isinstance(op, ast.NotIn) else member
    other = _term(right)
    if isinstance(op, ast.Is | ast.IsNot):
        if other is not None or not isinstance(term, ColumnName):
            raise ValueError(f"{ast.unparse(right)!r}: only `is null` and `is not null` are known, of a column")
        return Not(Null(term)) if isinstance(op, ast.IsNot) else Null(term)
    if term is None or other is None:
        raise ValueError("nothing is equal to null: write `is null` or `is not null`")
    if not isinstance(term, ColumnName) and not isinstance(other, ColumnName):
        raise ValueError(f"{ast.unparse(left)!r} and {ast.unparse(right)!r}: one side must be a column")
    return ColumnComparison(_OPS[type(op)], term, other)


def _literal(node: ast.expr) -> Value:
    value = _term(node)
    if value is None or isinstance(value, ColumnName):
        raise ValueError(f"{ast.unparse(node)!r} is not a literal value")
    return value


def _term(node: ast.expr) -> ColumnName | Value | None:
    match node:
        case ast.Name(name):
            return _NAMED[name.lower()] if name.lower() in _NAMED else ColumnName(name)
        case ast.Constant(None):
            return None
        case ast.Constant(float(), kind=str(digits)):
            return Decimal(digits)
        case ast.Constant(value) if isinstance(value, str | int):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value) as number) if not isinstance(value, bool):
            return -value if isinstance(value, int) else Decimal(f"-{number.kind}")
        case ast.Call(ast.Name("column"), [ast.Constant(str(name))], []):
            return ColumnName(name)
    raise ValueError(
        f"{ast.unparse(node)!r} is neither a column nor a literal value; write column('...') for an odd name"
    )
