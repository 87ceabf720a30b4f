"""Free answers, descriptions and captions: ROUGE against the gold text, equality, or a grade of the judge."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from evr1_core.scoring import Answer
from evr1_core.scoring.text import norm
from evr1_core.types import Sample, Score
from evr1_rewards.free_text import final_text, gold_texts
from evr1_rewards.judging import Scale, judged
from evr1_rewards.rouge import rouge, tokens

MAX_TOKENS = 20_000
"""Tokens that an answer may have."""


class OpenEndedOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Literal["rouge", "rouge1", "rouge2", "rougeL", "exact", "judge"] = "rouge"
    """`rouge` is the mean of the three F1 values; `exact` is equality up to case, white space and punctuation at the ends."""
    judge_scale: Scale | None = None
    """Lowest and highest rating that the judge is asked for; None asks it for right or wrong."""


class OpenEnded:
    """Compares the text that an answer gives with the gold text, the best of several."""

    def __init__(self, options: OpenEndedOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold text, or one of its alternatives, is blank."""
        gold_texts(sample.answer)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Any text that isn't blank."""
        return bool(content.strip())

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        golds, said = gold_texts(sample.answer), final_text(answer)
        words = tokens(said, MAX_TOKENS)
        if self.options.metric == "judge":
            grade = judged(answer, question=sample.problem, golds=golds, said=said, scale=self.options.judge_scale)
            return Score(accuracy=grade, answer=said)
        normal = norm(said)
        if any(normal == norm(gold) for gold in golds):
            return Score(accuracy=1.0, answer=said)
        if self.options.metric == "exact":
            return Score(accuracy=0.0, answer=said)
        return max((self._compare(tokens(gold), words, said) for gold in golds), key=lambda score: score.accuracy or 0.0)

    def _compare(self, gold: list[str], words: list[str], said: str) -> Score:
        parts = rouge(gold, words)
        if len(gold) == 1:  # it has no pair of words
            del parts["rouge2"]
        accuracy = sum(parts.values()) / len(parts) if self.options.metric == "rouge" else parts.get(self.options.metric, 0.0)
        return Score(accuracy=accuracy, answer=said, parts=parts)
