"""Mathematics: a formula or number against the gold one, by the first rule that decides.

    equal text -> 1   word golds: text only   two numbers: exact arithmetic   else: symbolic equality in a process of its own

Rows whose options the gold answer names are multiple choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from evr1_core.errors import Evr1Error
from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.text import nesting, unwrap
from evr1_core.types import Sample, Score
from evr1_rewards import symbolic
from evr1_rewards.free_text import final_statement, gold_texts
from evr1_rewards.latex import bare, without_left_side
from evr1_rewards.multiple_choice import MultipleChoice, MultipleChoiceOptions
from evr1_rewards.number_text import prepare
from evr1_rewards.numbers import Number, whole_number
from evr1_rewards.numerical import asks_percent, readings
from evr1_rewards.routed import Routed, RowReward

MAX_CHARS, MAX_NESTING = 1_000, 50
BARE_CHARS = 200
"""Characters of a response that is read as an answer though nothing marks it as one."""
TOLERANCE = Fraction(5, 10**6)
"""Relative; for a number without a finite decimal form against its rounded decimals."""

_COMMAND = re.compile(r"\\(?:text|mbox) ?\{[^{}]*+\}|\\[A-Za-z]+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_WORD = re.compile(r"(?:[^\W\d_]|-){4,}")
_SYMBOL = re.compile(r"[A-Za-zͰ-Ͽ]|\s+[a-zͰ-Ͽ](?![^\W\d_])")
"""Behind a number: 2x, 5π and 2 x are products, not amounts of something."""


class Math(Routed):
    """A choice where the gold answer names one of the row's options, else a formula."""

    def __init__(self, options: MultipleChoiceOptions) -> None:
        self._choice = MultipleChoice(options)
        self._formula = Formula()

    def prepare(self) -> None:
        """Start the process of symbolic equality. Raises Evr1Error when its libraries don't load."""
        try:
            symbolic.prepare()
        except ImportError as fault:
            raise Evr1Error(f"the libraries of the reward 'math' did not load: {fault}") from fault

    def route(self, sample: Sample) -> RowReward:
        if not sample.options:
            return self._formula
        try:
            self._choice.check(sample)
        except InvalidGold:
            return self._formula
        return self._choice


class Formula:
    """Reads the one formula or number that an answer gives."""

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer, or one of its alternatives, is blank, or so large that no answer could be equal."""
        for gold in gold_texts(sample.answer):
            if fault := _too_large(gold):
                raise InvalidGold(fault)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Any text that isn't blank."""
        return bool(content.strip())

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        said = read_formula(answer)
        pairs = [without_left_side(gold, said) for gold in gold_texts(sample.answer)]
        found = [_compare(*pair, context=asks_percent(sample)) for pair in pairs]
        if True in found:
            return Score(accuracy=1.0, answer=said)
        open_pairs = [pair for pair, verdict in zip(pairs, found, strict=True) if verdict is None]
        return Score(accuracy=float(_any_equal(open_pairs)), answer=said)


def read_formula(answer: Answer) -> str:
    """The last box or announcement; without one the answer block, or a whole response that is a formula. Raises Unparsed."""
    said = final_statement(answer.text)
    if said is None:
        said = answer.text
        if answer.source == "whole" and not _is_bare(said):
            raise Unparsed("no_answer")
    said = unwrap(said.strip().removesuffix("."))
    if fault := _too_large(said):
        raise Unparsed(fault)
    return said


def _too_large(text: str) -> str:
    """The cause for which a formula isn't read, or ""."""
    if len(text) > MAX_CHARS:
        return "too_long"
    return "too_complex" if nesting(text) > MAX_NESTING else ""


def _is_bare(text: str) -> bool:
    """Whether a text is a formula and not a sentence: one short line with at most one word."""
    return len(text) <= BARE_CHARS and "\n" not in text and len(_LETTERS.findall(_COMMAND.sub(" ", text))) <= 1


def _compare(gold: str, said: str, *, context: bool) -> bool | None:
    """Whether they are equal, None where only their meaning tells."""
    gold_form, said_form = bare(gold), bare(said)
    if gold_form and gold_form == said_form:
        return True
    if _WORD.fullmatch(gold_form):
        return gold_form.casefold() == said_form.casefold()
    if "!" in gold or "!" in said:
        return None
    wanted, number = _number(gold), _number(said)
    return None if wanted is None or number is None else _equal_numbers(wanted, number, context=context)


def _number(text: str) -> Number | None:
    number = whole_number(text)
    return None if number is None or _SYMBOL.match(prepare(text), number.end) else number


def _equal_numbers(gold: Number, number: Number, *, context: bool) -> bool:
    values = readings(number, gold, unit=gold.unit, literal=gold.percent, context=context)
    return any(
        value == gold.value
        or (not (_is_decimal(value) and _is_decimal(gold.value)) and abs(value - gold.value) <= TOLERANCE * abs(gold.value))
        for value in values
    )


def _is_decimal(value: Fraction) -> bool:
    """Whether the number has a finite decimal form."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _any_equal(pairs: Sequence[tuple[str, str]]) -> bool:
    """Symbolic equality of any pair; the answers of all pairs are one but for a left side."""
    by_answer: dict[str, list[str]] = {}
    for gold, said in pairs:
        by_answer.setdefault(said, []).append(gold)
    return any(symbolic.equal(golds, said) for said, golds in by_answer.items())
