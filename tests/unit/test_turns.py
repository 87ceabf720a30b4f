"""Engine and policy take turns on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evr1_core.train.run import Run


class Parts:
    """A learner and an engine that note what they are told."""

    weight_version = 3

    def __init__(self) -> None:
        self.calls: list[str] = []

    @contextmanager
    def aside(self, *, shared: bool) -> Iterator[None]:
        self.calls.append("policy aside")
        try:
            yield
        finally:
            self.calls.append("policy back")

    def wake(self) -> None:
        self.calls.append("wake")

    def sleep(self) -> None:
        self.calls.append("sleep")

    def sync(self, engine: Any, version: int) -> None:
        self.calls.append(f"weights {version}")


def test_the_engine_is_awake_only_while_the_policy_stands_aside() -> None:
    parts = Parts()
    run = cast(Run, SimpleNamespace(learner=parts, engine=parts))
    with Run.answering(run):
        parts.calls.append("answers")
    Run.refresh_engine(run)
    assert parts.calls == ["policy aside", "wake", "answers", "sleep", "policy back", "weights 3"]


def test_the_policy_is_back_when_answers_fail() -> None:
    parts = Parts()
    with pytest.raises(KeyError), Run.answering(cast(Run, SimpleNamespace(learner=parts, engine=parts))):
        raise KeyError("bad prompt")
    assert parts.calls == ["policy aside", "wake", "policy back"], "an engine that failed is left as it is"
