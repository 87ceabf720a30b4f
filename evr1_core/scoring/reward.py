"""What the author of a reward writes against: the answer, the protocol, and the three ways not to give a number.

The smallest reward is a function:

    def score(sample: Sample, answer: Answer) -> float:
        return float(answer.text == sample.answer)

A class adds options, a check of the gold answer and a strict form; see `Reward`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from evr1_core.types import Sample, Score


class ScoringStop(Exception):
    """Base of the three ways in which a reward ends without a number. `cause` is a short code for people and counters."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)


class Unparsed(ScoringStop):
    """No answer can be read from the text: counts as wrong, and is counted apart. For example `no_label`, `ambiguous`."""


class InvalidGold(ScoringStop):
    """The row's own answer, options or scoring settings are faulty. For example `missing`, `no_such_option`."""


class ScoringFailed(ScoringStop):
    """The scorer could not finish: no number is invented. For example `too_expensive`, `judge_unavailable`."""


class JudgeNeeded(Exception):
    """A reward asked the judge and the reply isn't there yet. Whoever runs the scorer gets the reply and scores again with it."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        super().__init__("a reply of the judge is needed")


def no_judge(prompt: str) -> str:
    """The judge of a run that has none."""
    raise ScoringFailed("judge_unavailable")


@dataclass(frozen=True, slots=True)
class Answer:
    """The one answer that was extracted from a response. Rewards never see the response itself."""

    content: str
    """The answer as it was written, with its white space; code needs it."""
    source: Literal["tag", "whole"] = "tag"
    """`tag`: the content of the answer block. `whole`: there was no block, this is the whole visible text."""
    ask: Callable[[str], str] = field(default=no_judge, compare=False, repr=False)
    """One prompt to the judge of the run, its reply back. Raises ScoringFailed (`judge_unavailable`), and JudgeNeeded, which a reward
    lets through: it is called again when the reply is there, so it has to ask the same each time."""

    @property
    def text(self) -> str:
        """The content without white space at its ends."""
        return self.content.strip()

    def read(self, limit: int) -> str:
        """The text, where a task reads at most `limit` characters.

        A longer block is `Unparsed("too_long")`; of a longer text without a block the last `limit` characters are read.
        """
        text = self.text
        if len(text) <= limit:
            return text
        if self.source == "tag":
            raise Unparsed("too_long")
        return text[-limit:]


@runtime_checkable
class Reward(Protocol):
    """How answers of a problem type are scored. Everything but the call is optional.

    An instance is made as `cls(options)` with the options of the row (`cls()` if the spec names no options model), is
    used for many rows and keeps no state between them. It may have four more methods:

    `check(sample) -> None` raises `InvalidGold` when the row is faulty; it runs before the answer is looked at, and for
    every row before training.
    `is_strict(sample, content: str) -> bool` tells whether the stripped content of the answer block is exactly what the
    prompt asked for. Without it any non-blank content is.
    `prepare() -> None` starts what a call needs (a process, a library), before the time of an item begins.
    `score_batch(pairs: list[tuple[Sample, Answer]]) -> list` scores several rows with the same options at once. Each result is
    what the call gives for that pair, or an instance of what it would raise; it must not depend on the other pairs. When it
    fails or takes too long, its pairs are scored by the call, one by one.

    An attribute `seconds` is the time that a reward bounds one row to by itself (the tests of a program); the deadline of a row is
    never below it.
    """

    def __call__(self, sample: Sample, answer: Answer) -> Score | float:
        """The accuracy in [0, 1], or a Score that also carries `parts` and the `answer` that was read.

        Raises `Unparsed`, `InvalidGold` or `ScoringFailed`. Any other exception is counted as a crash of the scorer.
        """
        ...
