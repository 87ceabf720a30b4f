"""Tests of Python answers: how a row gives them, and whether one run of the sandbox passes one.

    {"stdin": "3 4\\n", "stdout": "7\\n"}     {"call": "add(3, 4)", "returns": 7}     {"assert": "add(3, 4) == 7"}

What is expected stays here: the sandbox gets the code with the input or the expression, and what comes back is compared outside.
"""

from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from evr1_core.scoring import InvalidGold
from evr1_core.scoring.sandbox import Run

TOLERANCE = 1e-6
"""Relative or absolute, where one of two numbers is a float."""


@dataclass(frozen=True, slots=True)
class Test:
    """One test. `given` is the standard input or the expression, `expected` the output or the value."""

    kind: Literal["output", "value"]
    given: str
    expected: Any

    def passed(self, run: Run) -> bool:
        if run.end != "done":
            return False
        if self.kind == "output":
            return _lines(run.stdout.decode("utf-8", "replace")) == _lines(self.expected)
        return same(run.value, self.expected)


def read_tests(tests: Any) -> list[Test] | None:
    """The tests of a row, None where it has none. Raises InvalidGold (`tests`) for an empty list and for an unknown form.

    Accepts JSON text, as tables store it, and keys that are null because other tests of the table have them.
    """
    if isinstance(tests, str) and tests.strip():
        try:
            tests = json.loads(tests)
        except ValueError as fault:
            raise InvalidGold("tests") from fault
    if tests is None or tests == "":
        return None
    if not isinstance(tests, (list, tuple)) or not tests:
        raise InvalidGold("tests")
    return [_read(test) for test in tests]


def same(value: Any, expected: Any) -> bool:
    """Whether plain data from the sandbox is what is expected.

    Numbers within 1e-6 when one is a float, whole numbers exactly, bool only with bool, tuple like list, sets without order. JSON has
    no sets, so a set may be expected as a list without repetitions.
    """
    if isinstance(value, bool) or isinstance(expected, bool) or value is None or expected is None:
        return value is expected
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return _same_number(value, expected)
    if isinstance(value, str) and isinstance(expected, str):
        return value == expected
    if isinstance(value, (set, frozenset)):
        return (
            isinstance(expected, (set, frozenset, list, tuple))
            and len(value) == len(expected)
            and same(sorted(value, key=_order), sorted(expected, key=_order))
        )
    if isinstance(value, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        ours, theirs = ({_order(key): item for key, item in given.items()} for given in (value, expected))
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    return False


def _read(test: Any) -> Test:
    if not isinstance(test, dict):
        raise InvalidGold("tests")
    given = {name: item for name, item in test.items() if item is not None or (name == "returns" and test.get("call") is not None)}
    keys = set(given)
    if keys == {"stdin", "stdout"} and isinstance(given["stdin"], str) and isinstance(given["stdout"], str):
        return Test("output", given["stdin"], given["stdout"])
    if keys == {"call", "returns"} and _is_plain(given["returns"]):
        return Test("value", _expression(given["call"]), given["returns"])
    if keys == {"assert"}:
        return Test("value", _expression(given["assert"]), True)
    raise InvalidGold("tests")


def _expression(text: Any) -> str:
    """An expression, or an assert statement, as many data sets write it, as its expression."""
    if not isinstance(text, str):
        raise InvalidGold("tests")
    try:
        try:
            ast.parse(text.strip(), mode="eval")
            return text.strip()
        except SyntaxError:
            (statement,) = ast.parse(text.strip()).body
            if isinstance(statement, ast.Assert):
                return ast.unparse(statement.test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise InvalidGold("tests") from fault
    raise InvalidGold("tests")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def _same_number(value: float, expected: float) -> bool:
    if isinstance(value, int) and isinstance(expected, int):
        return value == expected
    try:
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an int that no float can hold
        return False


def _order(value: Any) -> Any:
    """A key by which plain hashable data of mixed types can be sorted and looked up: bool is not int, tuple is list."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return (1, value)
    if isinstance(value, (int, float)):
        return (2, value)
    if isinstance(value, str):
        return (3, value)
    if isinstance(value, (list, tuple)):
        return (4, tuple(_order(item) for item in value))
    return (5, repr(value))


def _lines(text: str) -> list[str]:
    """Lines without blanks at their ends and without empty ones at the end of the text."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
