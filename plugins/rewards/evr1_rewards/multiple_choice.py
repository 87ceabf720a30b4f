"""Multiple choice: exact match of option labels, single or multi-select."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from evr1_core.plugins import normal_problem_type
from evr1_core.scoring import Answer
from evr1_core.types import Sample, Score
from evr1_rewards.choice_answer import ChoiceReader
from evr1_rewards.choices import Gold, choices_of, read_gold

READ_CHARS = 10_000
_MULTI_SELECT = ("multi-select", "multiple-select")


class MultipleChoiceOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    multi_select: bool = False
    """The answer is a set of labels. A gold answer with several labels implies it."""
    index_base: Literal[0, 1] | None = None
    """Number of the first option where the gold answer is an integer; without it an integer gold is refused."""
    partial: Literal["none", "jaccard"] = "none"
    """Credit of an incomplete set in multi-select rows: none, or shared labels over all labels named."""


class MultipleChoice:
    """Reads the label or the option text that an answer names and compares it with the gold answer."""

    def __init__(self, options: MultipleChoiceOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the options are faulty or the gold answer names none of them."""
        self._row(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """A whole label, or a label with exactly its option's text; in multi-select rows a list of labels."""
        reader, gold = self._row(sample)
        if len(content) > READ_CHARS:
            return False
        if gold.multi:
            return bool(reader.as_set(content))
        return reader.whole_label(content) is not None or bool(reader.label_and_own_text(content))

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        reader, gold = self._row(sample)
        text = answer.read(READ_CHARS)
        named = reader.several(text) if gold.multi else reader.one(text)
        if not gold.multi:
            accuracy = float(bool(named & gold.labels))
        elif self.options.partial == "jaccard":
            accuracy = len(named & gold.labels) / len(named | gold.labels)
        else:
            accuracy = float(named == gold.labels)
        order = [label for label in reader.choices.labels if label in named]
        return Score(accuracy=accuracy, answer=", ".join(order))

    def _row(self, sample: Sample) -> tuple[ChoiceReader, Gold]:
        reader = ChoiceReader(choices_of(sample.options, sample.problem))
        multi = self.options.multi_select or normal_problem_type(sample.problem_type) in _MULTI_SELECT
        gold = read_gold(sample.answer, reader.choices, reader.whole_label, multi=multi, index_base=self.options.index_base)
        return reader, gold
