"""Preference: the trained model judges two responses, or one response on a scale, or is judged itself.

options without a scale    multiple choice
scale                      a rating against the gold rating
metric: judge              the judge of the run grades the answer
otherwise                  the verdict (first, second, tie) against the gold verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from evr1_core.scoring import Answer, InvalidGold
from evr1_core.types import Sample, Score
from evr1_rewards.free_text import final_text, gold_texts
from evr1_rewards.judging import Scale, judged
from evr1_rewards.multiple_choice import MultipleChoice, MultipleChoiceOptions
from evr1_rewards.numbers import read_number
from evr1_rewards.numerical import gold_numbers, is_number
from evr1_rewards.routed import Routed, RowReward
from evr1_rewards.verdict import TIE, read_verdict, whole_verdict

READ_CHARS = 10_000


class PreferenceOptions(MultipleChoiceOptions):
    """Options of a row or of the whole run; those of multiple choice are for rows with options."""

    scale: Scale | None = None
    """Lowest and highest rating: the answer is a number on this scale."""
    tie_credit: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Accuracy where just one of gold and answer is a tie."""
    metric: Literal["label", "judge"] = "label"
    """`judge`: the judge of the run grades the answer, in place of a comparison of verdicts."""
    judge_scale: Scale | None = None
    """Lowest and highest rating that the judge is asked for; None asks it for right or wrong."""


class Preference(Routed):
    """Chooses what a row asks for."""

    def __init__(self, options: PreferenceOptions) -> None:
        self.options = options
        self._choice = MultipleChoice(options)
        self._verdict = Verdict(options.tie_credit)
        self._rating = Rating(options.scale) if options.scale else None
        self._graded = Graded(options.judge_scale) if options.metric == "judge" else None

    def route(self, sample: Sample) -> RowReward:
        if self._rating:
            return self._rating
        if self._graded:
            return self._graded
        return self._choice if sample.options else self._verdict


class Verdict:
    """The better of two responses, or a tie."""

    def __init__(self, tie_credit: float) -> None:
        self.tie_credit = tie_credit

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer is no label and no tie word."""
        gold_verdict(sample.answer)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """One label or tie word."""
        return "*" not in content and "`" not in content and whole_verdict(content) is not None

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        said, gold = read_verdict(answer.read(READ_CHARS)), gold_verdict(sample.answer)
        accuracy = 1.0 if said == gold else self.tie_credit if TIE in (said, gold) else 0.0
        return Score(accuracy=accuracy, answer=said)


class Rating:
    """One response on a scale: 1 minus the share of the scale by which the rating is off; 0 outside the scale."""

    def __init__(self, scale: tuple[float, float]) -> None:
        self.low, self.high = (Fraction(repr(end)) for end in scale)  # as their author wrote them

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer is no number on the scale."""
        self._golds(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """One number."""
        return is_number(content)

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        golds = self._golds(sample)
        number = read_number(answer.read(READ_CHARS))
        off = min(abs(number.plain - gold) for gold in golds) / (self.high - self.low)
        inside = self.low <= number.plain <= self.high
        return Score(accuracy=float(max(1 - off, 0)) if inside else 0.0, answer=number.text())

    def _golds(self, sample: Sample) -> Sequence[Fraction]:
        golds = [gold.plain for gold in gold_numbers(sample.answer)]
        if not all(self.low <= gold <= self.high for gold in golds):
            raise InvalidGold("out_of_range")
        return golds


class Graded:
    """An answer that the judge of the run compares with the gold answer."""

    def __init__(self, scale: tuple[float, float] | None) -> None:
        self.scale = scale

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer is blank."""
        gold_texts(sample.answer)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Any text that isn't blank."""
        return bool(content.strip())

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        answer.read(READ_CHARS)  # refuses a longer block
        said = final_text(answer)
        grade = judged(answer, question=sample.problem, golds=gold_texts(sample.answer), said=said[-READ_CHARS:], scale=self.scale)
        return Score(accuracy=grade, answer=said)


def gold_verdict(answer: Any) -> str:
    """The gold verdict, a label or a tie word. Raises InvalidGold (`missing`, `not_a_label`)."""
    if answer is None or isinstance(answer, str) and not answer.strip():
        raise InvalidGold("missing")
    if isinstance(answer, bool) or not isinstance(answer, (str, int)):
        raise InvalidGold("not_a_label")
    verdict = whole_verdict(str(answer)) if not isinstance(answer, int) or answer in (1, 2) else None
    if verdict is None:
        raise InvalidGold("not_a_label")
    return verdict
