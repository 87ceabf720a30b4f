"""Which groups a step learns from."""

from __future__ import annotations

import pytest

from evr1_core.config.models import RewardSection
from evr1_core.scoring.score import training_value
from evr1_core.train.options import AlgorithmOptions
from evr1_core.train.selection import dead, explain_no_signal, has_signal, keep
from evr1_core.types import Completion, Group, Prompt, Rollout, Sample, Score

REWARDS = RewardSection()
TIMEOUT = Score(accuracy=None, status="failed", format=1.0, reason="timeout")
BROKEN = Score(accuracy=None, status="failed", format=1.0, reason="scorer_gone")


def right(accuracy: float) -> Score:
    return Score(accuracy=accuracy, format=1.0, value=0.9 * accuracy + 0.1)


def group(*scores: Score) -> Group:
    prompt = Prompt(Sample(id="s", problem="?", answer="A", problem_type="multiple-choice"), (), "", (1,))
    return Group(prompt, tuple(Rollout(Completion((2,), (-1.0,), "A", "stop"), score) for score in scores))


@pytest.mark.parametrize(
    ("scores", "std", "mean_range"),
    [
        ([right(1), right(0)], True, True),
        ([right(1), right(1)], False, False),
        ([right(0), right(0)], False, False),
        ([right(0.5), right(0.5)], False, True),
        ([right(0.99), right(1)], True, False),
        ([right(1)], False, False),
        ([right(1), BROKEN], False, False),
        ([], False, False),
    ],
)
def test_criteria(scores: list[Score], std: bool, mean_range: bool) -> None:
    assert has_signal(group(*scores), AlgorithmOptions(sampling_criterion="std"), REWARDS) is std
    assert has_signal(group(*scores), AlgorithmOptions(sampling_criterion="mean_range"), REWARDS) is mean_range


@pytest.mark.parametrize("metric", ["accuracy", "value"])
def test_an_answer_that_broke_its_scorer_is_a_wrong_one(metric: str) -> None:
    """The algorithm punishes it, so the group must not be dropped as all right."""
    found = group(right(1), right(1), TIMEOUT)
    assert len({training_value(rollout.score, REWARDS) for rollout in found.rollouts}) == 2
    assert has_signal(found, AlgorithmOptions.model_validate({"sampling_metric": metric}), REWARDS)


def test_a_part_alone_may_vary() -> None:
    """Accuracy is 0 throughout, the overlap is not: an algorithm that normalises every part has something to learn."""
    scores = [Score(accuracy=0.0, format=1.0, value=0.1, parts={"iou": iou} if iou else {}) for iou in (0.1, 0.3, None)]
    options = AlgorithmOptions(sampling_metric="parts")
    assert has_signal(group(*scores), options, REWARDS) and not has_signal(group(*scores), AlgorithmOptions(), REWARDS)
    assert not has_signal(group(scores[1], scores[2]), options, REWARDS), "one number doesn't vary"
    assert not has_signal(group(), options, REWARDS)


def test_shares_of_dead_groups() -> None:
    groups = [group(right(1), right(1)), group(right(0), right(0)), group(right(1), right(0)), group(right(0.5), right(0.5)), group(BROKEN)]
    found = dead(groups, AlgorithmOptions(), REWARDS)
    assert found.pop("selection/spread") == pytest.approx(0.5**0.5 / 4)
    assert found == {"selection/dead": 0.6, "selection/dead_right": 0.2, "selection/dead_wrong": 0.2}
    assert dead([], AlgorithmOptions(), REWARDS)["selection/dead"] == 0


def test_off_keeps_all() -> None:
    groups = [group(right(1), right(1)), group(right(1), right(0))]
    assert keep(groups, AlgorithmOptions(), REWARDS) == groups
    assert keep(groups, AlgorithmOptions(dynamic_sampling=True), REWARDS) == groups[1:]


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([group(right(1), right(1))], "too easy"),
        ([group(right(0), right(0))], "never right"),
        ([group(right(0.5), right(0.5))], "all alike"),
        ([group(BROKEN, BROKEN)], "every score failed"),
        ([], "no prompt was left"),
    ],
)
def test_why_nothing_is_left(groups: list[Group], text: str) -> None:
    assert text in explain_no_signal(groups, AlgorithmOptions(), REWARDS, tries=1)
