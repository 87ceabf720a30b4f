"""What the driver and the workers of a run tell each other, without workers."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evr1_core.errors import Evr1Error
from evr1_core.train.messages import Share
from evr1_core.train.remote import RemoteLearner
from evr1_core.train.worker import _of_rows


class Group:
    """Calls are kept; after a failure it is closed, and says so to whoever calls."""

    def __init__(self) -> None:
        self.closed, self.calls = False, []

    def call(self, method: str, *arguments: Any, phase: str) -> None:
        if self.closed:
            raise Evr1Error("workers are closed")
        self.calls.append((method, *arguments))


def learner(group: Group) -> RemoteLearner:
    found: Any = RemoteLearner.__new__(RemoteLearner)
    found.group, found.workers = group, SimpleNamespace(separate=False)
    found.config = SimpleNamespace(model=SimpleNamespace(weights_offload=True), train=SimpleNamespace(optimizer_offload="off"))
    return found


def test_a_policy_that_stands_aside_comes_back_and_a_failure_meanwhile_is_told_itself() -> None:
    group = Group()
    with learner(group).aside(shared=False):
        assert group.calls == [("aside", True, False)]
    assert group.calls[1:] == [("aside", False, False)]
    with pytest.raises(KeyError, match="the engine failed"), learner(group).aside(shared=False):
        group.closed = True
        raise KeyError("the engine failed")


def test_log_probabilities_are_sent_without_the_rectangle_that_they_are_rows_of() -> None:
    rectangle = torch.arange(80_000.0).reshape(8, 10_000)
    share = Share(prompts=(), rows=((0, (1, 2, 3)),) * 8, places=tuple(range(8)), plan=())
    found = _of_rows([*(row[:3] for row in rectangle), torch.zeros(1)], share)
    assert [one.tolist() for one in found] == [row[:3].tolist() for row in rectangle]
    assert len(pickle.dumps(found, protocol=5)) < 10_000
