"""ROUGE of texts in any script: rouge-score's numbers for English, and tokens for scripts that it drops."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from nltk.stem.porter import PorterStemmer
from rapidfuzz.distance import LCSseq
from rouge_score import tokenize
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import fmeasure

from evr1_core.scoring import Unparsed
from evr1_core.scoring.text import nfkc
from evr1_rewards.free_text import OWN_TOKEN

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(rf"[{OWN_TOKEN}]|[^\W_{OWN_TOKEN}]+")
_stemmer = PorterStemmer()
_CACHED_CHARS = 40
"""No memory for words that are none."""


class _AsGiven:
    """A tokenizer for what is a list of tokens already."""

    def tokenize(self, text: Any) -> Any:
        return text


_scorer: Any = RougeScorer(["rouge1", "rouge2"], tokenizer=_AsGiven())


def tokens(text: str, limit: int | None = None) -> list[str]:
    """Lower-case words, those in ASCII stemmed (Porter); every Han, Hiragana, Katakana and Thai character is a token.

    Pure ASCII text gives exactly the tokens of rouge-score. Raises Unparsed (`too_long`) for more than `limit` tokens.
    """
    ascii_only = text.isascii()
    text = text.lower() if ascii_only else nfkc(text).lower()
    found = (_ASCII_WORD if ascii_only else _WORD).finditer(text)
    words = [match[0] for match in islice(found, None if limit is None else limit + 1)]
    if limit is not None and len(words) > limit:
        raise Unparsed("too_long")
    stems = {word: _stem(word) for word in set(words)}
    return [stems[word] for word in words]


def rouge(gold: Sequence[str], said: Sequence[str]) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L by name, in [0, 1] (Lin, 2004, as rouge-score computes them). 0 without tokens."""
    found = {name: float(score.fmeasure) for name, score in _scorer.score(gold, said).items()}
    return found | {"rougeL": _rouge_l(gold, said)}


def _rouge_l(gold: Sequence[str], said: Sequence[str]) -> float:
    """With a bit-parallel longest common subsequence: rouge-score's table of every pair takes seconds and gigabytes for long texts."""
    if not gold or not said:
        return 0.0
    numbers = {token: number for number, token in enumerate({*gold, *said})}
    common = LCSseq.similarity([numbers[token] for token in gold], [numbers[token] for token in said])
    return float(fmeasure(common / len(said), common / len(gold)))


def _stem(word: str) -> str:
    return _cached_stem(word) if len(word) <= _CACHED_CHARS else _new_stem(word)


def _new_stem(word: str) -> str:
    found = tokenize.tokenize(word, _stemmer) if word.isascii() else [word]
    return found[0] if found else ""


_cached_stem = functools.lru_cache(maxsize=1 << 16)(_new_stem)
"""Texts share most of their words."""
