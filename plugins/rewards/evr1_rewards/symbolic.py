"""Equality of two formulas by math-verify and sympy, in a process that is killed after 5 s.

    equal(golds, said)  ->  helper process: LaTeX -> sympy -> bounded? -> verify -> check of constants

The library's own time limits are signals, which native code doesn't see and threads can't use; they are off.
"""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Sequence
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
_BAD_GOLD = "gold"
_process = Helper(f"{__name__}:load", SECONDS, MEMORY)


class TooExpensive(ValueError):
    """A formula that can't be evaluated in any time."""


def prepare() -> None:
    """Start the process. Raises ImportError."""
    _process.prepare()


def equal(golds: Sequence[str], said: str) -> bool:
    """Whether `said` equals one of the gold formulas; what can't be parsed equals nothing.

    Raises ScoringFailed (`timeout`, `memory`, `crash`, `too_expensive`), InvalidGold (`too_expensive`).
    """
    request = {"golds": [to_latex(gold) for gold in golds], "said": to_latex(said)}
    try:
        return _process(json.dumps(request).encode()) == b"1"
    except Exceeded as bound:
        raise ScoringFailed(bound.cause) from bound
    except ValueError as refused:
        if str(refused) == _BAD_GOLD:
            raise InvalidGold("too_expensive") from refused
        raise ScoringFailed("too_expensive") from refused


def load() -> Callable[[bytes], bytes]:
    """What the process does: `{"golds": [latex], "said": latex}` -> `1` or `0`."""
    import sys

    import math_verify  # noqa: F401 - loaded before the time of a call begins

    sys.setrecursionlimit(20_000)  # its parser takes about 100 frames for a level of brackets

    def answer(request: bytes) -> bytes:
        given = json.loads(request)
        found = _equal(given["golds"], given["said"])
        # math-verify turns every exception into "not equal", lack of memory too
        if not found and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > MEMORY // 2:
            raise MemoryError
        return b"1" if found else b"0"

    return answer


def _equal(golds: Sequence[str], said: str) -> bool:
    parsed = _parse(said)
    refuse_expensive(parsed)
    return any(_equals(gold, said, parsed) for gold in golds)


def _equals(gold: str, said: str, parsed: list[Any]) -> bool:
    from math_verify import verify

    wanted = _parse(gold)
    try:
        refuse_expensive(wanted)
    except TooExpensive as fault:
        raise ValueError(_BAD_GOLD) from fault
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
        return True
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


def refuse_expensive(parsed: list[Any]) -> None:
    """Raises TooExpensive for a power of numbers with more than 1,000,000 digits or a factorial of a number above 100,000."""
    from sympy import Basic

    for formula in parsed:
        if isinstance(formula, Basic):
            _size(formula)


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
                raise TooExpensive("power")
            return mpmath.power(base, exponent), exact
        if isinstance(formula, factorial):
            if exact and mpmath.re(values[0]) > MAX_FACTORIAL:
                raise TooExpensive("factorial")
            return mpmath.factorial(values[0]), exact
        if isinstance(formula, (Add, UnevaluatedExpr)):
            return mpmath.fsum(values), exact
        if isinstance(formula, Mul):
            return mpmath.fprod(values), exact
    except (ArithmeticError, TypeError):  # 1/0, infinity
        return None, False
    return None, False
