"""Numbers: equality within a tolerance, exact equality of counts, and mean relative accuracy of estimates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evr1_core.plugins import normal_problem_type
from evr1_core.scoring import Answer, InvalidGold
from evr1_core.types import Sample, Score
from evr1_rewards.numbers import Number, read_number, whole_number
from evr1_rewards.units import Unit, unit_of

READ_CHARS = 10_000
STRICT_CHARS = 200

_ESTIMATES = "regression"
_PERCENT_UNITS = ("%", "percent", "per cent", "pct", "percentage", "percentage points")
_PERCENT_IN_QUESTION = re.compile(r"[%％]|\bper\s?cent(?:age)?s?\b", re.IGNORECASE)

Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class NumericalOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Literal["tolerance", "exact", "mra"] | None = None
    """How answer and gold are compared; None is `mra` for the problem type `regression` and `tolerance` for all others."""
    tolerance: Tolerance | None = None
    """Largest difference that counts as equal. With `relative_tolerance` the larger of the two holds."""
    relative_tolerance: Tolerance | None = None
    """The same as a share of the gold's magnitude."""
    unit: str | None = None
    """Unit of a gold answer that is written without one, `%` included."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row says about its gold numbers."""

    golds: tuple[Number, ...]
    unit: Unit | None
    percent: bool
    """The declared unit is the percent."""
    asks_percent: bool
    """The question speaks of percent."""

    @property
    def clock(self) -> bool:
        units = [gold.unit for gold in self.golds] + [self.unit]
        return any(unit is not None and unit.kind == "time" for unit in units)


class Numerical:
    """Reads the one number that an answer gives and compares it with the gold number, in exact arithmetic."""

    def __init__(self, options: NumericalOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer, or one of its alternatives, is no number."""
        self._row(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """One number, at most with "about" before it and three words behind it."""
        return is_number(content)

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        row = self._row(sample)
        number = read_number(answer.read(READ_CHARS), clock=row.clock)
        metric = self.options.metric or ("mra" if normal_problem_type(sample.problem_type) == _ESTIMATES else "tolerance")
        return Score(accuracy=max(self._compare(number, gold, row, metric) for gold in row.golds), answer=number.text())

    def _row(self, sample: Sample) -> _Row:
        declared = (self.options.unit or "").strip()
        unit = unit_of(declared)
        return _Row(
            golds=gold_numbers(sample.answer, clock=unit is not None and unit.kind == "time"),
            unit=unit,
            percent=declared.lower() in _PERCENT_UNITS,
            asks_percent=asks_percent(sample),
        )

    def _compare(self, number: Number, gold: Number, row: _Row, metric: str) -> float:
        literal = gold.percent or (row.percent and gold.unit is None)
        values = readings(number, gold, unit=gold.unit or row.unit, literal=literal, context=row.asks_percent)
        if not values:
            return 0.0
        if metric == "mra":
            return max(mean_relative_accuracy(value, gold.value) for value in values)
        if metric == "exact":
            return float(any(value == gold.value for value in values))
        tolerance = self._tolerance(gold)
        return float(any(abs(value - gold.value) <= tolerance for value in values))

    def _tolerance(self, gold: Number) -> Fraction:
        absolute, relative = self.options.tolerance, self.options.relative_tolerance
        if absolute is None and relative is None:
            return default_tolerance(gold)
        # The decimal form of an option is what its author wrote: 0.1 is a tenth.
        return max(Fraction(repr(absolute or 0.0)), Fraction(repr(relative or 0.0)) * abs(gold.value))


def is_number(content: str) -> bool:
    """The strict form: a whole number in at most 200 characters."""
    return len(content) <= STRICT_CHARS and whole_number(content) is not None


def gold_numbers(answer: Any, *, clock: bool = False) -> tuple[Number, ...]:
    """The numbers that count as right: one, or a list of alternatives. Raises InvalidGold (`missing`, `not_a_number`)."""
    if isinstance(answer, (list, tuple)):
        if not answer:
            raise InvalidGold("missing")
        return tuple(_gold_number(entry, clock) for entry in answer)
    return (_gold_number(answer, clock),)


def _gold_number(answer: Any, clock: bool) -> Number:
    if answer is None or isinstance(answer, str) and not answer.strip():
        raise InvalidGold("missing")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise InvalidGold("not_a_number")
    if isinstance(answer, float) and not math.isfinite(answer) or isinstance(answer, int) and abs(answer) >= 10**60:
        raise InvalidGold("not_a_number")
    text = answer if isinstance(answer, str) else repr(answer)
    number = whole_number(text, clock=clock) if len(text) <= READ_CHARS else None
    if number is None:
        raise InvalidGold("not_a_number")
    return number


def asks_percent(sample: Sample) -> bool:
    """Whether the question speaks of percent."""
    return bool(_PERCENT_IN_QUESTION.search(sample.problem))


def readings(number: Number, gold: Number, *, unit: Unit | None, literal: bool, context: bool) -> list[Fraction]:
    """The values of an answer that may be compared with the gold value as it is written; none when they measure different things.

    `unit`: that of the gold. `literal`: the gold has a percent sign or its unit is the percent. `context`: the question speaks of percent.
    """
    if literal or number.percent or unit is None or number.unit is None:
        return _percent_readings(number, gold, literal=literal, context=context)
    return [number.value * number.unit.factor / unit.factor] if number.unit.kind == unit.kind else []


def _percent_readings(number: Number, gold: Number, *, literal: bool, context: bool) -> list[Fraction]:
    if literal:
        return [number.value] if number.percent else [number.value, 100 * number.value]
    if number.percent and (not context or abs(gold.value) < 1):
        return [number.value / 100]
    return [number.value]


def default_tolerance(gold: Number) -> Fraction:
    """Half of the last written decimal (2 to 4 of them), at most a twentieth of the gold and at least 1e-9; inclusive."""
    decimals = min(max(gold.decimals, 2), 4)
    rounding = Fraction(1, 2) * Fraction(10) ** (gold.exponent - decimals)
    return max(min(rounding, abs(gold.value) / 20), Fraction(1, 10**9))


def mean_relative_accuracy(value: Fraction, gold: Fraction) -> float:
    """Share of the thresholds θ = 0.50, 0.55, ..., 0.95 with |value - gold| / |gold| <= 1 - θ (arXiv 2412.14171).

    A gold of 0 is met by 0 only.
    """
    if gold == 0:
        return float(value == 0)
    error = abs(value - gold) / abs(gold)
    return sum(error <= Fraction(step, 20) for step in range(1, 11)) / 10
