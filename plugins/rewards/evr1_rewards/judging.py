"""An answer graded by the judge of the run: the prompt, and the number in the reply.

A reply without a readable number is a failure of this item (`judge_unparsed`), as is an unreachable judge
(`judge_unavailable`). No number is invented, and no other metric steps in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from evr1_core.data.templates import Templates
from evr1_core.scoring import Answer, ScoringFailed
from evr1_core.scoring.extract import extract

TEMPLATE = "evr1_templates:judge/verdict.j2"

_MARKS = r"[*_`\s]{0,8}"
_NUMBER = r"[-+]?\d{1,9}(?:\.\d{1,9})?"
_OTHER_FORM = rf"(?!\d|[.,]\d|{_MARKS}(?:\||/|or\b){_MARKS}\d)"  # "0|1" repeats the question
_JUDGEMENT = rf"\bjudge?ment{_MARKS}[:：]{_MARKS}[\[(]?(?P<verdict>[01]){_OTHER_FORM}"
_RATING = (
    rf"\b(?:score|rating){_MARKS}[:：]{_MARKS}[\[(]?(?P<rating>{_NUMBER})(?!\d|[.,]\d)"
    rf"(?:{_MARKS}(?:/|\bout\s{{1,4}}of\b){_MARKS}(?P<of>{_NUMBER}))?"
)
_VERDICTS = re.compile(_JUDGEMENT, re.IGNORECASE | re.ASCII)
_VERDICTS_AND_RATINGS = re.compile(f"{_JUDGEMENT}|{_RATING}", re.IGNORECASE | re.ASCII)

_templates = Templates()


def _ascending(scale: tuple[float, float]) -> tuple[float, float]:
    if not (all(map(math.isfinite, scale)) and scale[0] < scale[1]):
        raise ValueError("must be two numbers, the lower one first")
    return scale


Scale = Annotated[tuple[float, float], AfterValidator(_ascending)]
"""Lowest and highest rating, for the options of a reward."""


def judged(answer: Answer, *, question: str, golds: Sequence[str], said: str, scale: tuple[float, float] | None = None) -> float:
    """The judge's grade of `said` in [0, 1]: right or wrong, or with a `scale` its rating on it.

    Raises ScoringFailed (`judge_unavailable`, `judge_unparsed`), and JudgeNeeded, which the caller lets through.
    """
    return read_reply(answer.ask(judge_prompt(question=question, golds=golds, said=said, scale=scale)), scale)


def judge_prompt(*, question: str, golds: Sequence[str], said: str, scale: tuple[float, float] | None = None) -> str:
    """What the judge is asked; `golds` are alternatives. All given text is quoted line by line, so that none of it can end its part."""
    variables = {
        "question": _quoted(question),
        "golds": [_quoted(gold) for gold in golds],
        "said": _quoted(said),
        "scale": None if scale is None else [f"{end:g}" for end in scale],
    }
    return _templates.render(TEMPLATE, variables)


def read_reply(reply: str, scale: tuple[float, float] | None = None) -> float:
    """The last `Judgement: 0` or `1` of a reply, or with a `scale` the last `Score: x` or `Rating: x/n`, as a number in [0, 1].

    Reasoning blocks of the reply are not read. Raises ScoringFailed("judge_unparsed") when there is none, or when the last
    one is outside the scale or counts up to another number than the scale.
    """
    pattern = _VERDICTS if scale is None else _VERDICTS_AND_RATINGS
    last = max(pattern.finditer(extract(reply).visible), key=lambda match: match.start(), default=None)
    if last is None:
        raise ScoringFailed("judge_unparsed")
    if last["verdict"]:
        return float(last["verdict"])
    assert scale is not None
    low, high = scale
    rating, of = float(last["rating"]), last["of"]
    if not low <= rating <= high or (of and float(of) != high):
        raise ScoringFailed("judge_unparsed")
    return (rating - low) / (high - low)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines()) or "> "
