"""A reward that hands some rows of its problem types to another reward."""

from __future__ import annotations

from typing import Protocol

from evr1_core.scoring import Answer
from evr1_core.types import Sample, Score


class RowReward(Protocol):
    """A reward with everything that the scorer may ask for."""

    def check(self, sample: Sample) -> None: ...

    def is_strict(self, sample: Sample, content: str) -> bool: ...

    def __call__(self, sample: Sample, answer: Answer) -> Score: ...


class Routed:
    """The base of such a reward: `route` names the reward of a row, which then checks, reads and scores it."""

    def route(self, sample: Sample) -> RowReward:
        raise NotImplementedError

    def check(self, sample: Sample) -> None:
        self.route(sample).check(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        return self.route(sample).is_strict(sample, content)

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        return self.route(sample)(sample, answer)
