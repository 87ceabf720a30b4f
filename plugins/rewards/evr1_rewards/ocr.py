"""Reading text: word error rate (by default), character error rate, or equality, against one or several accepted readings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict
from rapidfuzz.distance import Levenshtein

from evr1_core.scoring import Answer
from evr1_core.scoring.text import nfkc
from evr1_core.types import Sample, Score
from evr1_rewards.free_text import OWN_TOKEN, final_text, gold_texts

SHOWN_CHARS = 1_000
"""So much of an answer is kept with its score."""

_STRAIGHT = str.maketrans(
    dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("“”„‟", '"') | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
)
_WORD = re.compile(rf"[{OWN_TOKEN}]|[^\s{OWN_TOKEN}]+")


class OcrOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Literal["wer", "cer", "exact"] = "wer"
    """Errors per gold word, errors per gold character without blanks, or equality."""
    case: Literal["ignore", "keep"] = "ignore"
    """Whether upper and lower case differ."""
    punctuation: Literal["keep", "ignore"] = "keep"
    """Whether punctuation and symbols count."""


class Ocr:
    """Compares the text that an answer gives with the gold text, both in one normal form."""

    def __init__(self, options: OcrOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold text, or one of its alternatives, is blank."""
        gold_texts(sample.answer)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Any text that isn't blank."""
        return bool(content.strip())

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        said = self._normal(final_text(answer))
        accuracy = max(self._compare(said, self._normal(gold)) for gold in gold_texts(sample.answer))
        return Score(accuracy=accuracy, answer=said[:SHOWN_CHARS])

    def _normal(self, text: str) -> str:
        text = nfkc(text.replace("″", '"')).translate(_STRAIGHT)  # NFKC makes two primes of a double one
        if self.options.case == "ignore":
            text = text.casefold()
        if self.options.punctuation == "ignore":
            text = "".join(" " if unicodedata.category(char)[0] in "PS" else char for char in text)
        text = " ".join(text.split())
        if text.endswith(("。", ".")) and not text.endswith(".."):
            text = text[:-1].rstrip()
        return text

    def _compare(self, said: str, gold: str) -> float:
        if self.options.metric == "exact" or said == gold:
            return float(said == gold)
        if self.options.metric == "cer":
            return 1 - error_rate("".join(said.split()), "".join(gold.split()))
        return 1 - error_rate(words(said), words(gold))


def words(text: str) -> list[str]:
    """The words of a text: split at blanks, where every Han, Hiragana, Katakana and Thai character is a word of its own."""
    return _WORD.findall(text)


def error_rate(said: Sequence[str], gold: Sequence[str]) -> float:
    """(substitutions + deletions + insertions) / gold length of the cheapest edit, at most 1. 0 for two empty sequences."""
    size = len(gold)
    if len(said) >= 2 * size:  # so many insertions that the rate is at least 1; hostile answers need no table
        return float(len(said) > 0)
    numbers = {word: number for number, word in enumerate({*said, *gold})}
    distance = Levenshtein.distance([numbers[word] for word in said], [numbers[word] for word in gold], score_cutoff=size)
    return min(distance / size, 1.0)
