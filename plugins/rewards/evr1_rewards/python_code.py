"""Python answers: by the row's tests in the sandbox, or without tests by likeness to the gold code's syntax tree."""

from __future__ import annotations

import ast
import time
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator

from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.sandbox import LAYERS, Limits, Run, run_python
from evr1_core.types import Sample, Score
from evr1_rewards.code import CodeOptions, dice, fenced_code, gold_code, tidy
from evr1_rewards.python_tests import Test, read_tests

MAX_CHARS, MAX_NESTING = 50_000, 60
ROW_SECONDS = 60.0
"""The tests of one row together; those that are left then are not passed."""
OTHER_CODE = 0.9
"""What code with all parts of the gold code in another arrangement gets at most."""
_LANGUAGES = ("python", "py", "python3")
_NAMES = ("id", "attr", "name", "arg", "asname", "module")


class PythonCode:
    """Runs the tests of a row, or compares syntax trees."""

    seconds = ROW_SECONDS + 5.0
    """What a row may take in all: its tests, and what comes before and after."""

    def __init__(self, options: CodeOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold: faulty tests, or neither tests nor gold code that parses."""
        self._gold(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Python that parses; a code fence does not."""
        return parse(content) is not None

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        gold = self._gold(sample)
        code = read_code(answer)
        if isinstance(gold, ast.Module):
            return Score(accuracy=likeness(gold, code), answer=code)
        passed, parts = run_tests(code, gold, stop_at_failure=self.options.tests == "all")
        share = passed / len(gold)
        return Score(accuracy=share if self.options.tests == "fraction" else float(passed == len(gold)), parts=parts, answer=code)

    def _gold(self, sample: Sample) -> list[Test] | ast.Module:
        tests = read_tests(sample.extra.get("tests"))
        if tests is not None:
            return tests
        tree = parse(gold_code(sample))
        if tree is None:
            raise InvalidGold("python")
        return tree


def read_code(answer: Answer) -> str:
    """The code of an answer. Raises Unparsed (`no_code`) for a text without answer block and without code fence.

    What parses as a whole is the code: a fence in it stands in a text or a comment of the code.
    """
    bare = tidy(answer.content)
    if answer.source == "tag" and parse(bare) is not None:
        return bare
    fenced = fenced_code(answer.content, _LANGUAGES)
    if fenced is None and answer.source == "whole":
        raise Unparsed("no_code")
    return bare if fenced is None else tidy(fenced)


def run_tests(code: str, tests: list[Test], *, stop_at_failure: bool) -> tuple[int, dict[str, float]]:
    """(number of tests passed, parts of the score): one run of the sandbox per test, at most ROW_SECONDS together."""
    parts = Counter[str]()
    started = time.monotonic()
    run: Run | None = None
    for test in tests:
        left = ROW_SECONDS - (time.monotonic() - started)
        if left <= 0:
            break
        limits = Limits(seconds=min(Limits().seconds, left))
        if test.kind == "output":
            run = run_python(code, stdin=test.given, limits=limits)
        else:
            run = run_python(code, expression=test.given, limits=limits)
        parts["tests_run"] += 1
        parts[f"run_{run.end}"] += 1
        parts["tests_passed"] += test.passed(run)
        if stop_at_failure and parts["tests_passed"] < parts["tests_run"]:
            break
    held = {layer: float(run is not None and layer in run.layers) for layer in LAYERS}
    return parts["tests_passed"], {**parts, "tests": len(tests), **held}


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for a syntax error and beyond 50,000 characters or 60 open brackets."""
    if len(code) > MAX_CHARS or _nesting(code) > MAX_NESTING:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the answer's own escapes and comparisons
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def likeness(gold: ast.Module, code: str) -> float:
    """1 for equal trees; else 0.9 times the Dice similarity of their multisets of (kind of node, its name or constant)."""
    tree = parse(code)
    if tree is None:
        return 0.0
    if list(_spelled(gold)) == list(_spelled(tree)):
        return 1.0
    return OTHER_CODE * (dice(_parts(gold), _parts(tree)) or 0.0)


def _spelled(tree: ast.Module) -> Iterator[Hashable]:
    """The tree in one line, without docstrings and positions. An own stack: trees may be deeper than Python's."""
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            yield ("list", len(node))
            stack.extend(reversed(node))
        elif isinstance(node, ast.AST):
            yield type(node).__name__
            stack.extend(_body(node) if field == "body" else getattr(node, field, None) for field in node._fields if field != "kind")
        else:
            yield _literal(node)


def _parts(tree: ast.Module) -> Counter[Hashable]:
    parts: Counter[Hashable] = Counter()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if not isinstance(node, (ast.Module, ast.expr_context)):
            parts[_part(node)] += 1
        body = _body(node)
        skipped = body is not getattr(node, "body", None)
        docstring = getattr(node, "body", [None])[0] if skipped else None
        stack.extend(child for child in ast.iter_child_nodes(node) if child is not docstring)
    return parts


def _part(node: ast.AST) -> Hashable:
    if isinstance(node, ast.Constant):
        return ("Constant", *_literal(node.value))
    return (type(node).__name__, *(getattr(node, name) for name in _NAMES if isinstance(getattr(node, name, None), str)))


def _literal(value: object) -> tuple[str, str]:
    return type(value).__name__, hex(value) if isinstance(value, int) else repr(value)  # repr refuses whole numbers of 4,301 digits


def _body(node: ast.AST) -> object:
    """The body of a node, without the docstring."""
    body = getattr(node, "body", None)
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(body, list) and body:
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return body[1:]
    return body


def _nesting(code: str) -> int:
    depth = deepest = 0
    for character in code:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
