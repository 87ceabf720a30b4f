"""Equality of two formulas by math-verify and sympy, in a process that is killed after 5 s.

    equal(golds, said)  ->  helper process: LaTeX -> sympy -> bounded? -> verify -> check of constants

The library's own time limits are signals, which native code doesn't see and threads can't use; they are off.
"""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from evr1_core.scoring import InvalidGold, ScoringFailed
from evr1_core.scoring.helper import Exceeded, Helper
from evr1_rewards.latex import to_latex

if TYPE_CHECKING:
    from sympy import Basic

SECONDS, MEMORY = 5.0, 2 << 30
MAX_DIGITS = 1_000_000
"""Digits of a power of numbers; no larger one can be finished."""
MAX_FACTORIAL = 100_000
TOLERANCE, ZERO_TOLERANCE = 5e-6, 1e-9
"""Relative difference of two equal real constants, and absolute difference from 0: math-verify compares 6 decimals."""

_INEQUALITY = re.compile(r"[<>≤≥]|\\(?:[lg]t|[lg]eq?(?:slant)?)(?![A-Za-z])")
_EQUAL, _DIFFERENT, _TOO_EXPENSIVE, _BAD_GOLD = b"e", b"d", b"x", b"g"
_process = Helper(f"{__name__}:load", SECONDS, MEMORY)


class TooExpensive(Exception):
    """A formula that can't be evaluated in any time."""


def prepare() -> None:
    """Start the process. Raises ImportError."""
    _process.prepare()


def equal(golds: Sequence[str], said: str) -> bool:
    """Whether `said` equals one of the gold formulas; what can't be parsed equals nothing.

    Raises ScoringFailed (`timeout`, `memory`, `crash`, `too_expensive`), InvalidGold (`too_expensive`).
    """
    return _ask(tuple(to_latex(gold) for gold in golds), to_latex(said))


@lru_cache(maxsize=4096)
def _ask(golds: tuple[str, ...], said: str) -> bool:
    """Answers of a group are often the same."""
    request = {"golds": golds, "said": said}
    try:
        reply = _process(json.dumps(request).encode())
    except Exceeded as bound:
        raise ScoringFailed(bound.cause) from bound
    if reply == _BAD_GOLD:
        raise InvalidGold("too_expensive")
    if reply == _TOO_EXPENSIVE:
        raise ScoringFailed("too_expensive")
    return reply == _EQUAL


def load() -> Callable[[bytes], bytes]:
    """What the process does: `{"golds": [latex], "said": latex}` -> one of four letters."""
    import sys

    sys.setrecursionlimit(20_000)  # the parser takes about 100 frames for a level of brackets
    _compare([r"\frac{x}{2}"], r"\frac{1}{2}x")  # libraries and tables of the parser are loaded before the time of a call begins

    def answer(request: bytes) -> bytes:
        given = json.loads(request)
        before = _peak()
        found = _compare(given["golds"], given["said"])
        # math-verify turns every exception into "not equal", lack of memory too
        if found == _DIFFERENT and _peak() > max(before, MEMORY // 2):
            raise MemoryError
        return found

    return answer


def _peak() -> int:
    """The most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _compare(golds: Sequence[str], said: str) -> bytes:
    parsed = _parse(said)
    if _is_expensive(parsed):
        return _TOO_EXPENSIVE
    for gold in golds:
        wanted = _parse(gold)
        if _is_expensive(wanted):
            return _BAD_GOLD
        if _equals(gold, wanted, said, parsed):
            return _EQUAL
    return _DIFFERENT


def _equals(gold: str, wanted: list[Any], said: str, parsed: list[Any]) -> bool:
    from math_verify import verify

    found = verify(wanted, parsed, timeout_seconds=None)
    if not found and bool(_INEQUALITY.search(gold)) != bool(_INEQUALITY.search(said)):
        found = verify(parsed, wanted, timeout_seconds=None)  # verify takes an interval for an inequality on its second side only
    return found and _close(wanted, parsed, percent="%" in gold or "%" in said)


def _parse(latex: str) -> list[Any]:
    """[formula, its text], or [text] where it can't be parsed.

    Without the library's second reading, of plain expressions: it takes the 2 of a `2√2` which the first one can't read.
    """
    from math_verify import LatexExtractionConfig, parse

    return parse(f"${latex}$", [LatexExtractionConfig()], parsing_timeout=None)  # type: ignore[arg-type]


def _close(gold: list[Any], said: list[Any], *, percent: bool) -> bool:
    """False for two real constants that differ: 1/2004! and 1/2006! are both 0 to the library."""
    wanted, value = _constant(gold[0]), _constant(said[0])
    if wanted is None or value is None:
        # The library compares such forms at random points, and by chance finds 7 equal to infinity.
        return wanted is value or not _is_infinite(said[0] if value is None else gold[0])
    readings = (value, value / 100, value * 100) if percent else (value,)
    return any(abs(reading - wanted) <= (TOLERANCE * abs(wanted) or ZERO_TOLERANCE) for reading in readings)


def _constant(formula: Any) -> Any:
    """The number that a formula without symbols is, with 30 digits; None for anything else."""
    from sympy import Expr

    if not isinstance(formula, Expr) or formula.free_symbols:
        return None
    try:
        value = formula.doit().evalf(30)
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # a form that sympy has no number for
        return None
    return value if value.is_Float or value.is_Rational else None


def _is_infinite(formula: Any) -> bool:
    from sympy import Expr

    if not isinstance(formula, Expr) or formula.free_symbols:
        return False
    try:
        return formula.doit().is_finite is False
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return False


def _is_expensive(parsed: list[Any]) -> bool:
    """Whether there is a power of numbers with more than 1,000,000 digits or a factorial of a number above 100,000."""
    from sympy import Basic

    try:
        for formula in parsed:
            if isinstance(formula, Basic):
                _size(formula)
    except TooExpensive:
        return True
    return False


def _size(formula: Basic) -> tuple[Any, bool]:
    """(about the value, None where it isn't known; whether sympy computes it in exact integers), from the bottom up.

    Floats of mpmath have exponents without bound, so that the size of a number is known before the number is.
    """
    import mpmath
    from sympy import Add, Float, Mul, NumberSymbol, Pow, Rational, UnevaluatedExpr, factorial

    if isinstance(formula, (Rational, Float, NumberSymbol)):
        return mpmath.mpmathify(formula.evalf(15)), isinstance(formula, Rational)
    parts = [_size(part) for part in formula.args if hasattr(part, "args")]
    values, exact = [value for value, _ in parts], all(part[1] for part in parts)
    if not values or None in values:
        return None, False
    try:
        if isinstance(formula, Pow):
            base, exponent = values
            if exact and base and abs(exponent * mpmath.log10(abs(base))) > MAX_DIGITS:
                raise TooExpensive
            return mpmath.power(base, exponent), exact
        if isinstance(formula, factorial):
            if exact and mpmath.re(values[0]) > MAX_FACTORIAL:
                raise TooExpensive
            return mpmath.factorial(values[0]), exact
        if isinstance(formula, (Add, UnevaluatedExpr)):
            return mpmath.fsum(values), exact
        if isinstance(formula, Mul):
            return mpmath.fprod(values), exact
    except (ArithmeticError, TypeError, ValueError):  # 1/0, infinity, (-1)!
        return None, False
    return None, False
